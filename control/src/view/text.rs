//! How views become text.

use comfy_table::{CellAlignment, Table, TableStyle, presets};

/// Something that can be shown to a person.
pub trait View {
    /// A table or lines of text, ending with a line break. Says so when there is nothing.
    fn text(&self) -> String;
}

impl<T> View for Vec<T>
where
    [T]: View,
{
    fn text(&self) -> String {
        self.as_slice().text()
    }
}

/// Columns of a table, with the side to which they are set.
pub(super) enum Column {
    /// Words: set to the left.
    Words(&'static str),
    /// Numbers: set to the right.
    Number(&'static str),
}

/// A plain table: two blanks between columns, no lines, no trailing blanks.
pub(super) fn table(columns: &[Column], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    let style: TableStyle = presets::NOTHING;
    table.load_style(style);
    table.set_header(columns.iter().map(|column| match column {
        Column::Words(name) | Column::Number(name) => *name,
    }));
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in columns.iter().enumerate() {
        if let Some(drawn) = table.column_mut(index) {
            drawn.set_padding((0, 2));
            drawn.set_cell_alignment(match column {
                Column::Words(_) => CellAlignment::Left,
                Column::Number(_) => CellAlignment::Right,
            });
        }
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// A number of bytes with a unit, three digits: `64.0K`.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_sets_words_left_and_numbers_right_without_trailing_blanks() {
        let columns = [Column::Words("NAME"), Column::Number("COUNT")];
        let rows = [
            vec!["a".into(), "1".into()],
            vec!["longer".into(), "1000".into()],
        ];
        assert_eq!(
            table(&columns, rows),
            "NAME    COUNT\na           1\nlonger   1000\n"
        );
    }

    #[test]
    fn bytes_are_shown_in_a_fitting_unit() {
        for (count, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (65536, "64.0K"),
            (1 << 20, "1.0M"),
        ] {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(bytes((1 << 20) - 1), "1.0M");
        assert_eq!(bytes(u64::MAX), "16.0E");
    }
}
