//! Lines out of a byte stream, within bounded memory.

/// Longest request, in bytes, without its line break. The longest legal one carries the text of
/// a configuration.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Collects what a client has sent until there is a whole line.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// Bytes at the begin that belong to lines given out. They go with the next push, all at once: a
    /// client that sends many short lines must not make each of them move all that are behind it.
    taken: usize,
    /// Bytes at the begin that are known to hold no line break behind those taken.
    searched: usize,
    /// Inside a line that is too long and is thrown away up to its end.
    skipping: bool,
}

/// What the bytes so far amount to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A line, without its line break.
    Line(Vec<u8>),
    /// A line longer than [`REQUEST_BYTES_MAX`], which is thrown away. Told once for each.
    TooLong,
}

impl Frames {
    /// Adds bytes that have arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes held.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Whether a complete line is held.
    pub(super) fn has_line(&self) -> bool {
        self.bytes[self.searched..].contains(&b'\n')
    }

    /// The next line, if one is complete.
    pub(super) fn next(&mut self) -> Option<Frame> {
        loop {
            let end = self.bytes[self.searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            match end.map(|at| at + self.searched) {
                Some(end) => {
                    let start = std::mem::replace(&mut self.taken, end + 1);
                    self.searched = self.taken;
                    if std::mem::take(&mut self.skipping) {
                        continue;
                    }
                    let line = &self.bytes[start..end];
                    if line.len() > REQUEST_BYTES_MAX {
                        return Some(Frame::TooLong);
                    }
                    return Some(Frame::Line(line.to_vec()));
                }
                None if self.skipping => {
                    self.clear();
                    return None;
                }
                None if self.len() > REQUEST_BYTES_MAX => {
                    self.clear();
                    self.skipping = true;
                    return Some(Frame::TooLong);
                }
                None => {
                    self.searched = self.bytes.len();
                    return None;
                }
            }
        }
    }

    /// What is left when the stream has ended: a last line without a line break.
    pub(super) fn rest(&mut self) -> Option<Frame> {
        let rest = self.bytes[self.taken..].to_vec();
        self.clear();
        let skipping = std::mem::take(&mut self.skipping);
        (!rest.is_empty() && !skipping).then_some(Frame::Line(rest))
    }

    /// Throws away all that is held.
    fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Option<Frame> {
        Some(Frame::Line(text.as_bytes().to_vec()))
    }

    #[test]
    fn lines_come_out_whole_however_they_came_in() {
        let mut frames = Frames::default();
        for byte in b"one\n\ntwo" {
            frames.push(&[*byte]);
            if *byte != b'\n' {
                assert_eq!(frames.next(), None);
            } else if frames.len() == 4 {
                assert_eq!(frames.next(), line("one"));
            } else {
                assert_eq!(frames.next(), line(""));
            }
        }
        frames.push(b"\nthree\nfour");
        assert_eq!(frames.next(), line("two"));
        assert_eq!(frames.next(), line("three"));
        assert_eq!(frames.next(), None);
        assert_eq!(frames.rest(), line("four"));
        assert_eq!(frames.rest(), None);
    }

    #[test]
    fn lines_that_came_together_stay_where_they_are_until_more_comes() {
        let mut frames = Frames::default();
        frames.push(b"one\ntwo\nthr");
        let place = frames.bytes.as_ptr();
        assert_eq!(frames.next(), line("one"));
        assert_eq!(frames.next(), line("two"));
        assert_eq!(frames.next(), None);
        assert_eq!((frames.bytes.as_ptr(), frames.bytes.len()), (place, 11));
        assert_eq!(frames.len(), 3);
        frames.push(b"ee\n");
        assert_eq!(frames.bytes.len(), 6);
        assert_eq!(frames.next(), line("three"));
        assert_eq!((frames.len(), frames.rest()), (0, None));
    }

    #[test]
    fn a_line_too_long_is_told_once_and_does_not_fill_memory() {
        let mut frames = Frames::default();
        let chunk = vec![b'x'; 1 << 16];
        let mut told = 0;
        for _ in 0..100 {
            frames.push(&chunk);
            told += usize::from(frames.next() == Some(Frame::TooLong));
            assert!(frames.len() <= REQUEST_BYTES_MAX + chunk.len());
        }
        assert_eq!(told, 1);
        frames.push(b"xx\nnext\n");
        assert_eq!(frames.next(), line("next"));
        frames.push(&vec![b'y'; REQUEST_BYTES_MAX + 1]);
        frames.push(b"\nafter\n");
        assert_eq!(frames.next(), Some(Frame::TooLong));
        assert_eq!(frames.next(), line("after"));
    }
}
