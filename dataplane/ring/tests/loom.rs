//! Every interleaving, and every value that a weak memory order allows, of the line ring and of
//! the sleep flag. Run with `RUSTFLAGS="--cfg loom" cargo test -p pollux-ring --test loom --release`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use pollux_ring::{
    LINE_WORDS, LineReader, LineSink, LineSource, LineWriter, SleepFlag, SleepView, WordSink,
    WordSource,
};

/// Lines made of the checker's words.
#[derive(Clone)]
struct Checked {
    words: Arc<Vec<AtomicU64>>,
}

impl Checked {
    fn new(lines: usize) -> Checked {
        Checked {
            words: Arc::new((0..lines * LINE_WORDS).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    fn word(&self, position: u64, word: usize) -> &AtomicU64 {
        &self.words[(position as usize % self.lines()) * LINE_WORDS + word]
    }
}

impl LineSource for Checked {
    fn lines(&self) -> usize {
        self.words.len() / LINE_WORDS
    }

    fn load(&self, position: u64, word: usize) -> u64 {
        self.word(position, word).load(Ordering::Relaxed)
    }
}

impl LineSink for Checked {
    fn store(&self, position: u64, word: usize, value: u64) {
        self.word(position, word).store(value, Ordering::Relaxed);
    }

    fn store_release(&self, position: u64, word: usize, value: u64) {
        self.word(position, word).store(value, Ordering::Release);
    }

    fn demote(&self, _position: u64) {}

    fn prefetch(&self, _position: u64) {}
}

fn line(number: u64) -> [u64; 7] {
    [number + 100; 7]
}

#[test]
fn line_that_is_seen_is_whole() {
    loom::model(|| {
        let memory = Checked::new(2);
        let mut reader = LineReader::over(memory.clone());
        let thread = thread::spawn(move || {
            let mut writer = LineWriter::over(memory);
            writer.write(&line(0));
            writer.write(&line(1));
        });
        for _ in 0..2 {
            if let Some(words) = reader.peek() {
                assert_eq!(words, line(reader.read_count()));
                reader.advance(1);
            }
        }
        thread.join().expect("writer");
        while reader.read_count() < 2 {
            assert_eq!(reader.peek(), Some(line(reader.read_count())));
            reader.advance(1);
        }
    });
}

#[test]
fn line_is_not_written_over_before_it_was_copied() {
    loom::model(|| {
        let memory = Checked::new(1);
        let head = Arc::new(AtomicU64::new(0));
        let mut reader = LineReader::over(memory.clone());
        let their_head = Arc::clone(&head);
        let thread = thread::spawn(move || {
            let mut writer = LineWriter::over(memory);
            writer.write(&line(0));
            writer
                .refresh(their_head.load(Ordering::Acquire))
                .expect("honest");
            if writer.free() > 0 {
                writer.write(&line(1));
            }
            writer.written()
        });
        for _ in 0..2 {
            if let Some(words) = reader.peek() {
                assert_eq!(words, line(reader.read_count()));
                reader.advance(1);
                head.store(reader.read_count(), Ordering::Release);
            }
        }
        let written = thread.join().expect("writer");
        if reader.read_count() < written {
            assert_eq!(reader.peek(), Some(line(reader.read_count())));
        }
    });
}

/// A word of the checker's.
#[derive(Clone)]
struct CheckedWord(Arc<AtomicU64>);

impl WordSource for CheckedWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl WordSink for CheckedWord {
    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

#[test]
fn sleeper_sees_the_line_or_the_writer_sees_the_sleeper() {
    loom::model(|| {
        let memory = Checked::new(2);
        let word = CheckedWord(Arc::new(AtomicU64::new(0)));
        let reader = LineReader::over(memory.clone());
        let flag = SleepFlag::new(word.clone());
        let thread = thread::spawn(move || {
            let mut writer = LineWriter::over(memory);
            writer.write(&line(0));
            SleepView::new(word).must_wake()
        });
        flag.arm();
        let seen = reader.peek().is_some();
        let woken = thread.join().expect("writer");
        assert!(seen || woken, "the wake-up was lost");
    });
}
