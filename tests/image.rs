//! Pure: the image's build gets what it needs, and only that.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// The build's context is what `.dockerignore` lets through. Cargo refuses a package whose manifest
/// names a test or example that it would have to look for and that is not there.
#[test]
fn cargo_reads_the_package_from_what_dockerignore_lets_through() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let context = tempfile::tempdir().unwrap();
    let rules = std::fs::read_to_string(root.join(".dockerignore")).unwrap();
    let mut rules = rules.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    assert_eq!(rules.next(), Some("*"), "first everything is left out");
    for rule in rules {
        let name = rule.strip_prefix('!').expect("then each rule lets something through");
        let copied = Command::new("cp")
            .args(["-r", "--"])
            .args([root.join(name), context.path().join(name)])
            .status()
            .unwrap();
        assert!(copied.success(), "{name}");
    }
    // Cargo looks for each target only when it is to build one, and says that this one is missing
    // when the rest is in order.
    let build = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--offline", "--bin", "none-of-that-name"])
        .current_dir(context.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&build.stderr);
    assert!(said.contains("no bin target named `none-of-that-name`"), "{said}");
}
