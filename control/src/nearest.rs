//! The nearest legal word to a mistyped one.

/// The word of `legal` that is closest to `given`, if any is close enough to be a slip: at most
/// two edits, or a third of the word. Case, `-` and `_` do not count.
#[must_use]
pub fn nearest<'a>(given: &str, legal: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A hostile client may send a name of any length; nothing that long is a slip.
    if given.len() > 64 {
        return None;
    }
    let given = fold(given);
    let limit = (given.len() / 3).max(2);
    legal
        .into_iter()
        .map(|word| (distance(&given, &fold(word)), word))
        .filter(|(edits, word)| *edits <= limit && *edits < word.len())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, word)| word)
}

fn fold(word: &str) -> Vec<char> {
    word.chars()
        .map(|c| {
            if c == '-' {
                '_'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect()
}

/// Edits (insert, delete, replace, swap of neighbours) that lead from one word to the other.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &to) in b.iter().enumerate() {
            let mut edits = (last[j] + usize::from(from != to)).min(last[j + 1] + 1);
            edits = edits.min(row[j] + 1);
            if i > 0 && j > 0 && from == b[j - 1] && a[i - 1] == to {
                edits = edits.min(before_last[j - 1] + 1);
            }
            row.push(edits);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_understood_and_other_words_are_not() {
        let legal = ["sndbuf", "slots", "sessions_max", "spin_us"];
        assert_eq!(nearest("slotz", legal), Some("slots"));
        assert_eq!(nearest("sndbfu", legal), Some("sndbuf"));
        assert_eq!(nearest("Sessions-Max", legal), Some("sessions_max"));
        assert_eq!(nearest("port", legal), None);
        assert_eq!(nearest(&"s".repeat(5000), legal), None);
    }
}
