//! Columns of text, each as wide as its widest cell.

/// Rows under a header. A cell that is empty is printed as `-`.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&str]) -> Table {
        Table {
            rows: vec![header.iter().map(|name| (*name).to_owned()).collect()],
        }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
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

    pub(super) fn text(&self) -> String {
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
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"));
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
}
