//! Pure side: a CSV file as rows with named fields, each with the line that it stands on.

use super::{Faults, Source};

/// A CSV file whose first line names the columns.
pub(super) struct Table<'a> {
    file: &'a str,
    header: Vec<String>,
    /// Columns that the header should have and has not: said once, not for each row.
    absent: Vec<String>,
    rows: Vec<(u64, csv::StringRecord)>,
}

/// One row of it.
pub(super) struct Row<'a> {
    file: &'a str,
    header: &'a [String],
    absent: &'a [String],
    record: &'a csv::StringRecord,
    /// The line, from 1.
    pub(super) line: u64,
}

impl<'a> Table<'a> {
    /// Reads a file that must have the columns `required` and may have `optional`, in any order.
    /// Another column is a fault: a misspelt optional column would else be ignored in silence.
    /// What is wrong with the header does not keep the rows from being looked at.
    pub(super) fn read(
        source: Source<'a>,
        required: &[&str],
        optional: &[&str],
        faults: &mut Faults,
    ) -> Option<Self> {
        let file = source.name;
        let Plain { text, lines } = plain(source, faults);
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .flexible(true)
            .has_headers(false)
            .from_reader(text.as_bytes());
        let mut records = lines.into_iter().zip(reader.records());
        let Some((line, Ok(names))) = records.next() else {
            faults.add(file, 1, "", "nothing", "a line that names the columns");
            return None;
        };
        if let (1, Some(sign)) = (names.len(), names[0].chars().find(|c| ";\t|".contains(*c))) {
            let found = format!("columns separated by {sign:?}");
            faults.add(file, line, "", found, "columns separated by commas");
            return None;
        }
        let header: Vec<String> = names.iter().map(str::to_ascii_lowercase).collect();
        let missing = required.iter().filter(|name| !header.iter().any(|known| known == *name));
        let absent: Vec<String> = missing.map(|&name| name.to_owned()).collect();
        for name in &absent {
            faults.add(file, line, name, "no such column", "this column is needed");
        }
        for (at, name) in header.iter().enumerate() {
            let known = required.contains(&name.as_str()) || optional.contains(&name.as_str());
            if !known {
                let allowed = [required, optional].concat().join(", ");
                faults.add(file, line, name, "an unknown column", allowed);
            } else if header[..at].contains(name) {
                faults.add(file, line, name, "the column twice", "each column once");
            }
        }
        let mut rows = Vec::new();
        for (line, record) in records {
            match record {
                Ok(record) if record.len() == header.len() => rows.push((line, record)),
                Ok(record) => {
                    let found = format!("{} fields", record.len());
                    let allowed = format!("{} fields, as in the header", header.len());
                    faults.add(file, line, "", found, allowed);
                }
                Err(error) => faults.add(file, line, "", error.to_string(), "a line of CSV"),
            }
        }
        Some(Self { file, header, absent, rows })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(line, record)| Row {
            file: self.file,
            header: &self.header,
            absent: &self.absent,
            record,
            line: *line,
        })
    }
}

/// CSV without what the parser does not know: comments, blank lines, rows of empty fields, blanks
/// before a field that begins with a quote, and a byte order mark.
struct Plain {
    text: String,
    /// The line on which each record begins.
    lines: Vec<u64>,
}

fn plain(source: Source<'_>, faults: &mut Faults) -> Plain {
    let content = source.content.trim_start_matches('\u{feff}');
    let content = content.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = Plain { text: String::with_capacity(content.len()), lines: Vec::new() };
    let (mut rest, mut line) = (content.as_str(), 1);
    while !rest.is_empty() {
        let first = rest.split_once('\n').map_or(rest, |(first, _)| first);
        let says = |c: char| !c.is_whitespace() && c != ',';
        if first.trim_start().starts_with('#') || !first.contains(says) {
            rest = rest.get(first.len() + 1..).unwrap_or_default();
            line += 1;
            continue;
        }
        let before = out.text.len();
        let length = match record(rest, &mut out.text) {
            Ok(length) => {
                out.lines.push(line);
                length
            }
            Err(quoted_from) => {
                out.text.truncate(before);
                let opened = line + newlines(&rest[..quoted_from]);
                let found = "a quote that is never closed";
                faults.add(source.name, opened, "", found, "a second quote at the field's end");
                // What follows may still be read: the quote was most likely meant to end here.
                let end = rest[quoted_from..].find('\n');
                end.map_or(rest.len(), |end| quoted_from + end + 1)
            }
        };
        line += newlines(&rest[..length]);
        rest = &rest[length..];
    }
    out
}

fn newlines(text: &str) -> u64 {
    text.bytes().filter(|byte| *byte == b'\n').map(|_| 1).sum()
}

/// Where in a field a letter stands.
#[derive(Clone, Copy)]
enum Place {
    Begin,
    Bare,
    Quoted,
    /// Behind a quote that closes the field, or is the first of a doubled one.
    Closed,
}

/// Copies one record, its end of line included, and returns its length; or where the quote stands
/// that is never closed.
fn record(text: &str, out: &mut String) -> Result<usize, usize> {
    let (mut place, mut quoted_from) = (Place::Begin, 0);
    for (at, letter) in text.char_indices() {
        place = match (place, letter) {
            (Place::Begin, ' ' | '\t') => continue,
            (Place::Begin, '"') => {
                quoted_from = at;
                Place::Quoted
            }
            (Place::Quoted, '"') => Place::Closed,
            (Place::Closed, '"') | (Place::Quoted, _) => Place::Quoted,
            (_, '\n') => {
                out.push(letter);
                return Ok(at + 1);
            }
            (_, ',') => Place::Begin,
            _ => Place::Bare,
        };
        out.push(letter);
    }
    out.push('\n');
    if matches!(place, Place::Quoted) { Err(quoted_from) } else { Ok(text.len()) }
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
        if self.absent.iter().any(|absent| absent == column) {
            return None;
        }
        let value = parse(self.get(column));
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
