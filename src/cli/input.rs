//! Pure side: what a command is given to read.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;

/// The content of a file, or of standard input for `-`, and what to call it in messages.
pub(super) fn read(path: &Path) -> anyhow::Result<(String, Vec<u8>)> {
    let name = path.display().to_string();
    let content = if name == "-" {
        let mut content = Vec::new();
        std::io::stdin().lock().read_to_end(&mut content).map(|_| content)
    } else {
        std::fs::read(path)
    };
    let content = content.with_context(|| format!("failed to read {name}"))?;
    Ok((name, content))
}
