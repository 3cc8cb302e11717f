//! `docs/regressions.md`: every entry of the bug log has a row, and every test that a row names exists.

use std::collections::BTreeMap;
use std::fs;

use crate::support::root;

/// The rows of the table: the entry, and its last two cells.
fn rows(text: &str) -> BTreeMap<u32, (String, String)> {
    let row = |line: &str| {
        let cells: Vec<&str> =
            line.strip_prefix("| L")?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let [entry, _fault, tests, state] = cells[..] else { panic!("four cells: {line}") };
        Some((entry.parse().expect("a number"), (tests.to_owned(), state.to_owned())))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn the_table_of_regressions_names_tests_that_exist() {
    let text = fs::read_to_string(root().join("docs/regressions.md")).expect("docs/regressions.md");
    let rows = rows(&text);
    let entries: Vec<u32> = rows.keys().copied().collect();
    assert_eq!(entries, (1..=31).collect::<Vec<u32>>(), "one row per entry");
    let mut wrong = Vec::new();
    for (entry, (tests, state)) in &rows {
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if names.is_empty() && !state.starts_with("does not apply") {
            wrong.push(format!("L{entry:02} names no test and does not say that it does not apply"));
        }
        for name in names {
            let Some((file, test)) = name.split_once("::") else {
                wrong.push(format!("L{entry:02}: {name} is not file::test"));
                continue;
            };
            let found = fs::read_to_string(root().join(file));
            let declared = format!("fn {test}()");
            let exists = found.is_ok_and(|source| {
                let mut lines = source.lines();
                lines.by_ref().any(|line| line.trim() == "#[test]")
                    && source.split("#[test]").skip(1).any(|rest| {
                        rest.lines()
                            .find(|line| line.contains("fn "))
                            .is_some_and(|line| line.contains(&declared))
                    })
            });
            if !exists {
                wrong.push(format!("L{entry:02}: there is no test {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
