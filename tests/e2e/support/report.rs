//! What the cluster looks like, for the reader of a failed scenario.

use std::fmt::Write as _;

use super::world::World;
use super::{SYSTEM, command, logs};

/// How many lines of each log are shown.
const LOG_LINES: usize = 25;

/// Objects, events and logs, as text.
pub(super) async fn cluster(world: &World) -> String {
    let mut text = String::new();
    for arguments in [
        "get gpool,gnode -o wide",
        "get pods -A -o wide",
        "get gnode -o yaml",
        "get events -A --sort-by=.metadata.creationTimestamp",
    ] {
        let _ = writeln!(text, "\n$ kubectl {arguments}");
        let words: Vec<&str> = arguments.split(' ').collect();
        match command::output("kubectl", &words).await {
            Ok(output) => text.push_str(&tail(&(output.stdout + &output.stderr), 120)),
            Err(error) => drop(writeln!(text, "{error:?}")),
        }
    }
    for (name, log) in logs::texts(SYSTEM) {
        let _ = writeln!(text, "\n--- the end of {name}");
        text.push_str(&tail(&log, LOG_LINES));
    }
    let _ = writeln!(text, "\n--- what the containers wrote");
    for record in &world.now().records {
        let _ = writeln!(text, "{record:?}");
    }
    text
}

/// Puts the report of a failed scenario into a file at once: the summary comes at the end only.
pub(super) fn keep(name: &str, text: &str) {
    let folder = command::repository().join("out/e2e");
    let path = folder.join(format!("{}.txt", name.replace("::", "-")));
    match std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, text)) {
        Ok(()) => eprintln!("e2e: {name}: see {}", path.display()),
        Err(error) => eprintln!("e2e: cannot write {}: {error}", path.display()),
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let mut shown = all[all.len().saturating_sub(lines)..].join("\n");
    shown.push('\n');
    shown
}
