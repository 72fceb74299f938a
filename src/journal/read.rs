//! Pure: records, read back from their lines. Whatever is wrong is named with its line, what
//! stands there, and what may stand there instead; all of it at once.

use serde::Deserialize;

use super::{Record, VERSION};
use crate::trace::Fault;

/// So many steps no controller has taken.
const SEQ_MAX: u64 = 1 << 48;
/// The end of the year 9999 in milliseconds of the Unix epoch: later there are no dates.
const NOW_MAX_MS: u64 = 253_402_300_799_999;
/// So much of a broken line is shown.
const SHOWN: usize = 60;

/// The records of a file, each with its line from 1, and the lines that cannot be read.
pub fn read(file: &str, content: &[u8]) -> (Vec<(u64, Record)>, Vec<Fault>) {
    let (mut records, mut wrong) = (Vec::new(), Vec::new());
    let whole = content.is_empty() || content.ends_with(b"\n");
    let last = content.split(|&byte| byte == b'\n').count();
    for (at, line) in content.split(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let number = u64::try_from(at).unwrap_or(u64::MAX).saturating_add(1);
        match parse(line, !whole && at + 1 == last) {
            Ok(record) => records.push((number, record)),
            Err((found, allowed)) => wrong.push((number, found, allowed)),
        }
    }
    let mut faults = folded(file, &wrong);
    if records.is_empty() && faults.is_empty() {
        faults.push(Fault {
            file: file.to_owned(),
            line: 1,
            column: String::new(),
            found: "no record at all".to_owned(),
            allowed: first_line(),
        });
    }
    (records, faults)
}

/// Lines that follow one another and are wrong alike, as where a whole file is of another version,
/// are one fault.
fn folded(file: &str, wrong: &[(u64, String, String)]) -> Vec<Fault> {
    let alike = |(_, one, may): &(_, String, String), (_, other, might): &(_, String, String)| {
        one == other && may == might
    };
    let fault = |lines: &[(u64, String, String)]| {
        let (line, found, allowed) = lines.first()?.clone();
        let (last, _, _) = lines.last()?;
        let found = match lines.len() {
            1 => found,
            many => format!("{found}, as in all {many} up to line {last}"),
        };
        Some(Fault { file: file.to_owned(), line, column: String::new(), found, allowed })
    };
    wrong.chunk_by(alike).filter_map(fault).collect()
}

/// What a line is, as far as it says so.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    v: Option<serde_json::Value>,
    #[serde(default)]
    event: Option<serde_json::Value>,
}

fn first_line() -> String {
    format!(
        "lines that begin with {{\"v\":{VERSION},\"pool\":…, the first of a pool with its state"
    )
}

fn parse(line: &[u8], cut: bool) -> Result<Record, (String, String)> {
    let head: Head = serde_json::from_slice(line).map_err(|error| {
        if cut && error.is_eof() {
            let allowed = "a whole line. The file ends in the middle of one: it was cut off, or is \
                           still being written";
            (format!("only the beginning of a record: {}", shown(line)), allowed.to_owned())
        } else {
            (format!("no JSON object: {}: {}", describe(&error), shown(line)), first_line())
        }
    })?;
    match head.v {
        None if head.event.is_some() => {
            let allowed =
                "a record of the policy; what `sluice record` wrote is for `sluice timeline`";
            return Err(("a record of what ran".to_owned(), allowed.to_owned()));
        }
        None => {
            return Err((format!("a record without a version: {}", shown(line)), first_line()));
        }
        Some(version) if version != VERSION => {
            let allowed = format!(
                "version {VERSION}, which is what sluice {} reads; use the sluice that wrote it",
                env!("CARGO_PKG_VERSION")
            );
            return Err((format!("a record of version {version}"), allowed));
        }
        Some(_) => {}
    }
    let record = serde_json::from_slice(line).map_err(|error| {
        let allowed = format!("a record of version {VERSION} as docs/records.md describes it");
        (describe(&error), allowed)
    })?;
    possible(record)
}

/// A record with a number and a time that can be.
fn possible(record: Record) -> Result<Record, (String, String)> {
    if record.seq > SEQ_MAX {
        return Err((format!("step {}", record.seq), format!("a step up to {SEQ_MAX}")));
    }
    if record.now_ms > NOW_MAX_MS {
        let allowed = format!("a time of the Unix epoch up to the year 9999, {NOW_MAX_MS}");
        return Err((format!("a record of the time {} ms", record.now_ms), allowed));
    }
    Ok(record)
}

/// The parser counts lines within the one that it was given: only the column helps a reader.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let known = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&known) {
        Some(bare) => format!("{bare} (at character {})", error.column()),
        None => text,
    }
}

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut short: String = text.chars().take(SHOWN).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
