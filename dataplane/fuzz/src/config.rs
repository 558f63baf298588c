//! Configurations: any text is a good one or a list of findings.
//!
//! 1. Findings name the file, a line of it, and what is wrong, each on one line of bounded length.
//! 2. A good configuration written out reads as the same one, and is written as the same text.
//! 3. So does the one that a program makes of it, and its rows for `show` name no key twice.

use std::collections::BTreeSet;

use pollux_control::config::Config;

const ORIGIN: &str = "fuzz.toml";
/// Longest line of a finding; what it repeats of the file is cut.
const FINDING_BYTES_MAX: usize = 2000;

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    match Config::from_toml_str(text, ORIGIN) {
        Ok(config) => judge(&config),
        Err(errors) => {
            let lines = text.lines().count();
            let mut count = 0;
            for error in errors.iter() {
                count += 1;
                assert_eq!(error.origin, ORIGIN);
                assert!(
                    error.line <= lines + 1,
                    "{error}: the text has {lines} lines"
                );
                let told = error.to_string();
                assert!(!told.contains('\n'), "{told:?}");
                assert!(
                    told.len() <= FINDING_BYTES_MAX,
                    "{} bytes: {told}",
                    told.len()
                );
            }
            assert!(count > 0, "refused without a reason");
        }
    }
}

fn judge(config: &Config) {
    let text = config.to_toml();
    let again = Config::from_toml_str(&text, ORIGIN);
    assert_eq!(again.as_ref(), Ok(config), "written as\n{text}");
    assert_eq!(config.validate("a program"), Ok(()));
    if let Ok(again) = again {
        assert_eq!(again.to_toml(), text);
    }
    let entries = config.entries();
    let keys: BTreeSet<_> = entries.iter().map(|entry| &entry.key).collect();
    assert_eq!(keys.len(), entries.len(), "a key is shown twice");
}
