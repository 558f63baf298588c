//! The table of what has gone wrong elsewhere: each row names a report by its link, and a test that
//! exists, or says why the same cannot occur.

use std::path::Path;

use super::Finding;
use super::source::Source;

/// Where the table is.
const TABLE: &str = "control/tests/README.md";

/// What a row without a test has to say.
const NO_TEST: &str = "cannot occur";

/// Checks the table of the repository.
pub(crate) fn check(root: &Path) -> Vec<Finding> {
    match std::fs::read_to_string(root.join(TABLE)) {
        Ok(text) => check_text(&text, &|path| std::fs::read_to_string(root.join(path)).ok()),
        Err(error) => vec![finding(0, format!("cannot be read: {error}"))],
    }
}

fn check_text(text: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut rows = 0;
    for (index, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, report, _, here, _] = cells.as_slice() else {
            continue;
        };
        if !report.contains("](https://") {
            if *report != "report" && !report.starts_with("--") {
                findings.push(finding(index + 1, "the report has no link".to_owned()));
            }
            continue;
        }
        rows += 1;
        let tests: Vec<(&str, &str)> = tests(here).collect();
        if tests.is_empty() && !here.contains(NO_TEST) {
            let message = format!("names no test, and does not say that it {NO_TEST}");
            findings.push(finding(index + 1, message));
        }
        for (path, name) in tests {
            let is_there = read(path).is_some_and(|text| has_function(path, &text, name));
            if !is_there {
                findings.push(finding(
                    index + 1,
                    format!("there is no test `{path}::{name}`"),
                ));
            }
        }
    }
    if rows == 0 {
        findings.push(finding(0, "has no table of reports".to_owned()));
    }
    findings
}

/// The tests that a cell names, as file and function.
fn tests(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.filter_map(|name| name.rsplit_once("::"))
}

/// Whether a file defines a function of this name, outside of comments and texts.
fn has_function(path: &str, text: &str, name: &str) -> bool {
    let source = Source::new(path, text);
    let head = format!("fn {name}");
    source.code.iter().any(|line| {
        let after = line.split_once(&head).map(|(_, after)| after);
        after.is_some_and(|after| after.starts_with(['(', '<']))
    })
}

fn finding(line: usize, message: String) -> Finding {
    Finding {
        path: TABLE.to_owned(),
        line,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn it_works() {}\n// fn not_this() {}\nfn generic<B>() {}\n";

    fn messages(here: &str) -> Vec<String> {
        let table = format!(
            "| folder | is |\n|---|---|\n| report | what | here |\n|---|---|---|\n\
             | [a 1](https://example.org/1) | broke | {here} |\n"
        );
        let read = |path: &str| (path == "a/b.rs").then(|| SOURCE.to_owned());
        let findings = check_text(&table, &read);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rows_with_tests_that_exist_or_a_reason_pass() {
        for here in [
            "`a/b.rs::it_works`",
            "so: `a/b.rs::it_works`, `a/b.rs::generic`",
            "cannot occur here: there is none",
        ] {
            assert_eq!(messages(here), Vec::<String>::new(), "{here}");
        }
    }

    #[test]
    fn tests_that_do_not_exist_are_found_with_their_line() {
        for here in [
            "`a/b.rs::it_work`",
            "`a/b.rs::not_this`",
            "`a/c.rs::it_works`",
        ] {
            let found = messages(here);
            assert!(
                found.len() == 1 && found[0].starts_with("control/tests/README.md:5: there is no"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_row_without_test_and_reason_and_a_page_without_table_are_found() {
        assert!(messages("all is well")[0].contains("names no test"));
        let none = check_text("# Tests\n", &|_| None);
        assert_eq!(none.len(), 1);
        let unlinked = check_text("| a report | broke | cannot occur |\n", &|_| None);
        assert!(unlinked[0].message.contains("no link"), "{unlinked:?}");
    }
}
