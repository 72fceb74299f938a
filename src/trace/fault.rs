//! Pure side: what is wrong with a file, said so that it can be put right.

use std::fmt;

use serde::Serialize;

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// The line, from 1; zero where none is to blame.
    pub line: u64,
    /// The column's name; empty where the whole line is meant.
    pub column: String,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub allowed: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        // Some things are nowhere in particular.
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        write!(f, " ")?;
        if !self.column.is_empty() {
            write!(f, "column {}: ", self.column)?;
        }
        write!(f, "found {}; allowed: {}", self.found, self.allowed)
    }
}

/// Everything that is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(
        &mut self,
        file: &str,
        line: u64,
        column: &str,
        found: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        self.0.push(Fault {
            file: file.to_owned(),
            line,
            column: column.to_owned(),
            found: found.into(),
            allowed: allowed.into(),
        });
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "one fault in the input:")?,
            many => write!(f, "{many} faults in the input:")?,
        }
        for fault in &self.0 {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
