//! Columns of text, each as wide as its widest cell.

/// Rows under a header. A cell that is empty is printed as `-`. Columns whose name begins with `>`
/// hold figures, which stand right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Table {
        let name = |name: &&str| name.trim_start_matches('>').to_owned();
        Table {
            rows: vec![header.iter().map(name).collect()],
            right: header.iter().map(|name| name.starts_with('>')).collect(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len());
        let cell = |cell: String| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                cell
            }
        };
        self.rows.push(cells.into_iter().map(cell).collect());
    }

    pub(crate) fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|column| {
                self.rows
                    .iter()
                    .map(|row| row[column].chars().count())
                    .max()
            })
            .map(Option::unwrap_or_default)
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells =
                row.iter()
                    .zip(widths.iter().zip(&self.right))
                    .map(|(cell, (width, right))| match right {
                        true => format!("{cell:>width$}"),
                        false => format!("{cell:<width$}"),
                    });
            text.push_str(cells.collect::<Vec<_>>().join(" ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_cell_moves_the_columns_after_it() {
        let mut table = Table::new(&["GROUP", "LAG", "HOST"]);
        table.row(vec![
            "a-long-name".to_owned(),
            "0".to_owned(),
            String::new(),
        ]);
        assert_eq!(table.text(), "GROUP       LAG HOST\na-long-name 0   -\n");
    }

    #[test]
    fn figures_stand_right() {
        let mut table = Table::new(&["RUN", ">P50", "NOTE"]);
        table.row(vec!["a".to_owned(), "12345".to_owned(), "x".to_owned()]);
        table.row(vec!["b".to_owned(), "7".to_owned(), String::new()]);
        assert_eq!(table.text(), "RUN   P50 NOTE\na   12345 x\nb       7 -\n");
    }
}
