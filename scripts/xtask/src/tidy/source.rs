//! A Rust source, with what is code told apart from what is comment or text.

/// One source file.
pub(crate) struct Source {
    /// Path below the root, with `/` between the parts.
    pub path: String,
    /// The lines with every comment and every character of a string or character literal replaced
    /// by a space, so that a search finds code only.
    pub code: Vec<String>,
    /// Index of the first line that is test code; the number of lines if there is none.
    pub tests_from: usize,
}

impl Source {
    /// Splits a source into its lines.
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let code: Vec<String> = blanked(text).lines().map(str::to_owned).collect();
        let tests_from = if is_test_file(path) {
            0
        } else {
            first_test_line(&code)
        };
        Source {
            path: path.to_owned(),
            code,
            tests_from,
        }
    }

    /// Whether the file lies in this folder or is this file.
    pub(crate) fn is_in(&self, place: &str) -> bool {
        self.path == place || self.path.starts_with(&format!("{place}/"))
    }
}

/// Files that hold nothing but tests: integration tests, benchmarks, `tests.rs` modules, and the
/// helpers of other crates' tests (`testing.rs`, behind the feature of that name).
fn is_test_file(path: &str) -> bool {
    let mut parts = path.split('/').rev();
    matches!(parts.next(), Some("tests.rs" | "testing.rs"))
        || parts.any(|part| part == "tests" || part == "benches")
}

/// The first inline module that is compiled for tests only. A single item that is so (a `use`, a
/// helper) does not begin the tests.
fn first_test_line(code: &[String]) -> usize {
    let is_module = |line: &&String| {
        let line = line.trim();
        (line.starts_with("mod ") || line.starts_with("pub mod ")) && line.ends_with('{')
    };
    for (index, line) in code.iter().enumerate() {
        if line.starts_with("#[cfg(") && has_word(line, "test") {
            let next = code[index + 1..].iter().find(|line| {
                let line = line.trim();
                !line.is_empty() && !line.starts_with("#[")
            });
            if next.as_ref().is_some_and(is_module) {
                return index;
            }
        }
    }
    code.len()
}

/// Whether `word` stands in the line with no letter, digit or `_` next to it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    positions(line, word).any(|at| !line[at + word.len()..].starts_with(is_of_a_word))
}

/// Whether a word that begins with `prefix` stands in the line.
pub(crate) fn has_prefix(line: &str, prefix: &str) -> bool {
    positions(line, prefix).next().is_some()
}

/// Where `word` begins in the line with nothing before it that would make it part of another
/// word. A `'` counts as such, so that `'static` is not `static`.
fn positions<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_free = |c: char| !is_of_a_word(c) && c != '\'';
    let starts_word = word.starts_with(is_of_a_word);
    line.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| !starts_word || line[..at].chars().next_back().is_none_or(is_free))
}

fn is_of_a_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text with comments and literals blanked; every line keeps its number.
fn blanked(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment_end(&chars, at);
        if end > at {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
            continue;
        }
        // A word is taken whole, so that the `r` at its end does not begin a raw string.
        let mut end = at + 1;
        if is_of_a_word(chars[at]) {
            while end < chars.len() && is_of_a_word(chars[end]) {
                end += 1;
            }
        }
        out.extend(&chars[at..end]);
        at = end;
    }
    out
}

/// Where the comment or literal that begins at `at` ends, or `at` if none begins there.
fn literal_or_comment_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => line_end(chars, at),
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        '\'' => char_end(chars, at),
        'b' | 'c' | 'r' => prefixed_end(chars, at),
        _ => at,
    }
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..]
        .iter()
        .position(|&c| c == '\n')
        .map_or(chars.len(), |length| at + length)
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = at;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => {
                depth += 1;
                at += 2;
            }
            ('*', '/') => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

/// The end of a string whose first character is at `at`.
fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// The end of a character literal, or `at` for the quote of a lifetime.
fn char_end(chars: &[char], at: usize) -> usize {
    if chars.get(at + 1) == Some(&'\\') {
        let from = (at + 3).min(chars.len());
        let length = chars[from..].iter().position(|&c| c == '\'');
        return length.map_or(chars.len(), |length| from + length + 1);
    }
    if chars.get(at + 2) == Some(&'\'') {
        at + 3
    } else {
        at
    }
}

/// Literals with a letter in front: `b"..."`, `c"..."`, `b'.'`, `r"..."`, `br#"..."#` and so on.
fn prefixed_end(chars: &[char], at: usize) -> usize {
    let mut after = at;
    if matches!(chars[after], 'b' | 'c') {
        after += 1;
        match chars.get(after) {
            Some('"') => return string_end(chars, after + 1),
            Some('\'') if chars[at] == 'b' => {
                let end = char_end(chars, after);
                return if end > after { end } else { at };
            }
            _ => {}
        }
    }
    if chars.get(after) != Some(&'r') {
        return at;
    }
    let hashes = chars[after + 1..].iter().take_while(|&&c| c == '#').count();
    let open = after + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return at;
    }
    let mut end = open + 1;
    while end < chars.len() {
        let closes = chars[end] == '"'
            && chars[end + 1..]
                .iter()
                .take(hashes)
                .filter(|&&c| c == '#')
                .count()
                == hashes;
        end += 1;
        if closes {
            return end + hashes;
        }
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        blanked(text)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(code("a; // unsafe\nb;"), "a; b;");
        assert_eq!(code("/// unsafe\nfn a() {}"), "fn a() {}");
        assert_eq!(code("a /* one /* two */ unsafe */ b"), "a b");
        assert_eq!(code("a /* never closed"), "a");
    }

    #[test]
    fn literals_are_no_code() {
        assert_eq!(code(r#"f("un\"safe", 1)"#), "f( , 1)");
        assert_eq!(code(r##"f(r#"a "quoted" b"#, r"\", 2)"##), "f( , , 2)");
        assert_eq!(
            code(r##"f(b"x", br#"y"#, c"z", b'w', b'\'')"##),
            "f( , , , , )"
        );
        assert_eq!(code("f('\"', '\\'', '\\u{41}', 'a')"), "f( , , , )");
        assert_eq!(code("f(\"never closed"), "f(");
    }

    #[test]
    fn lifetimes_and_words_that_end_in_r_stay() {
        assert_eq!(code("fn a<'b>(c: &'b str) {}"), "fn a<'b>(c: &'b str) {}");
        assert_eq!(code("for r in br { r#type }"), "for r in br { r#type }");
    }

    #[test]
    fn lines_keep_their_numbers() {
        let source = Source::new("a.rs", "let a = \"one\ntwo\";\n/* x\ny */ let b;\n");
        assert_eq!(source.code.len(), 4);
        assert_eq!(source.code[3].trim(), "let b;");
    }

    #[test]
    fn tests_begin_at_the_inline_module() {
        let text = "#[cfg(test)]\nuse x;\nfn a() {}\n#[cfg(test)]\n#[path = \"y\"]\nmod tests {\n}";
        assert_eq!(Source::new("a.rs", text).tests_from, 3);
        assert_eq!(Source::new("a.rs", "fn a() {}\n").tests_from, 1);
        assert_eq!(Source::new("x/tests/a.rs", text).tests_from, 0);
        assert_eq!(Source::new("x/src/a/tests.rs", text).tests_from, 0);
        assert_eq!(Source::new("x/src/testing.rs", text).tests_from, 0);
        assert_eq!(
            Source::new("a.rs", "#[cfg(all(test, unix))]\nmod t {\n}").tests_from,
            0
        );
    }

    #[test]
    fn words_are_found_whole() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("#[allow(unsafe_code)]", "unsafe"));
        assert!(!has_word("let not_unsafe = 1;", "unsafe"));
        assert!(has_word("static mut A: u8", "static mut"));
        assert!(!has_word("&'static mut T", "static mut"));
        assert!(has_word("#[ignore]", "#[ignore"));
        assert!(has_prefix("a.wrapping_add(b)", "wrapping_"));
        assert!(!has_prefix("a.unwrapping_add(b)", "wrapping_"));
    }

    #[test]
    fn a_place_is_a_file_or_a_folder() {
        let source = Source::new("a/b/c.rs", "");
        assert!(source.is_in("a/b"));
        assert!(source.is_in("a/b/c.rs"));
        assert!(!source.is_in("a/bb"));
    }
}
