//! Pure side: a CSV file as rows with named fields, each with the line that it stands on.

use super::{Faults, Source};

/// A CSV file whose first line names the columns.
pub(super) struct Table<'a> {
    file: &'a str,
    header: Vec<String>,
    rows: Vec<(u64, csv::StringRecord)>,
}

/// One row of it.
pub(super) struct Row<'a> {
    file: &'a str,
    header: &'a [String],
    record: &'a csv::StringRecord,
    /// The line, from 1.
    pub(super) line: u64,
}

impl<'a> Table<'a> {
    /// Reads a file that must have the columns `required` and may have `optional`, in any order.
    /// Another column is a fault: a misspelt optional column would else be ignored in silence.
    pub(super) fn read(
        source: Source<'a>,
        required: &[&str],
        optional: &[&str],
        faults: &mut Faults,
    ) -> Option<Self> {
        let file = source.name;
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .flexible(true)
            .comment(Some(b'#'))
            .from_reader(source.content.trim_start_matches('\u{feff}').as_bytes());
        let header: Vec<String> = match reader.headers() {
            Ok(names) => names.iter().map(str::to_ascii_lowercase).collect(),
            Err(error) => {
                faults.add(file, 1, "", error.to_string(), "a line that names the columns");
                return None;
            }
        };
        let before = faults.0.len();
        for name in required.iter().filter(|name| !header.iter().any(|h| h == *name)) {
            faults.add(file, 1, name, "no such column", "this column is needed");
        }
        for (at, name) in header.iter().enumerate() {
            let known = required.contains(&name.as_str()) || optional.contains(&name.as_str());
            if !known {
                let allowed = [required, optional].concat().join(", ");
                faults.add(file, 1, name, "an unknown column", allowed);
            } else if header[..at].contains(name) {
                faults.add(file, 1, name, "the column twice", "each column once");
            }
        }
        if faults.0.len() > before {
            return None;
        }
        let mut rows = Vec::new();
        for record in reader.records() {
            match record {
                Ok(record) => {
                    let line = record.position().map_or(0, csv::Position::line);
                    if record.iter().all(str::is_empty) {
                        continue;
                    }
                    if record.len() == header.len() {
                        rows.push((line, record));
                    } else {
                        let found = format!("{} fields", record.len());
                        let allowed = format!("{} fields, as in the header", header.len());
                        faults.add(file, line, "", found, allowed);
                    }
                }
                Err(error) => {
                    let line = error.position().map_or(0, csv::Position::line);
                    faults.add(file, line, "", error.to_string(), "a line of CSV in UTF-8");
                }
            }
        }
        Some(Self { file, header, rows })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(line, record)| Row {
            file: self.file,
            header: &self.header,
            record,
            line: *line,
        })
    }
}

impl Row<'_> {
    /// The field of a column; empty where there is no such column.
    pub(super) fn get(&self, column: &str) -> &str {
        let at = self.header.iter().position(|name| name == column);
        at.and_then(|at| self.record.get(at)).unwrap_or_default()
    }

    /// The field read by `parse`, or a fault that says what is allowed.
    pub(super) fn need<T>(
        &self,
        column: &str,
        allowed: &str,
        faults: &mut Faults,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.get(column);
        let value = parse(text);
        if value.is_none() {
            self.fault(column, allowed, faults);
        }
        value
    }

    /// The same for a field that may be empty: `Some(None)` where it is.
    #[expect(clippy::option_option, reason = "wrong, absent and present are three cases")]
    pub(super) fn may<T>(
        &self,
        column: &str,
        allowed: &str,
        faults: &mut Faults,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<Option<T>> {
        if self.get(column).is_empty() {
            return Some(None);
        }
        self.need(column, allowed, faults, parse).map(Some)
    }

    /// Reports this field.
    pub(super) fn fault(&self, column: &str, allowed: &str, faults: &mut Faults) {
        let text = self.get(column);
        let found = if text.is_empty() { "nothing".to_owned() } else { format!("{text:?}") };
        faults.add(self.file, self.line, column, found, allowed);
    }
}
