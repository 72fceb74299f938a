//! A stand-in for a GPU job in tests and the demo: says which GPUs its container was given, holds them
//! for a while, and says when it lets go. It stands outside the wall and shares no code with Sluice, so
//! that what it reports is evidence of its own.
//!
//! ```text
//! workload [--seconds N] [--until-file PATH] [--ignore-sigterm] [--exit-code N] [--record FOLDER]
//! ```
//!
//! It runs until `--seconds` have passed or `--until-file` exists, whichever comes first; without
//! either, until SIGTERM. Each event is one JSON line on standard output, as `sluice timeline` reads
//! them, and with `--record` also in `FOLDER/UID.jsonl`, named after the pod's UID.
//!
//! `POD_NAME`, `POD_NAMESPACE`, `POD_UID` and `NODE_NAME` (downward API) say who the pod is. Without
//! them the name is the host name, and the UID is read off the pod's mount of `/etc/hosts`.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{self, Instant};

/// What the shell reports for a process that ended on SIGTERM.
const EXIT_SIGTERM: u8 = 143;
/// How often `--until-file` is looked for: the file is on a host path, where no watch reaches.
const FILE_POLL: Duration = Duration::from_millis(20);
/// Variables that name a container's GPUs, the most telling first.
const GPU_VARIABLES: [&str; 3] = ["SLUICE_GPUS", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];

#[derive(Debug, Default)]
struct Options {
    run: Option<Duration>,
    until_file: Option<PathBuf>,
    ignore_sigterm: bool,
    exit_code: u8,
    record: Option<PathBuf>,
}

/// Why the work ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Time,
    File,
    Terminated,
}

impl End {
    fn reason(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::File => "file",
            Self::Terminated => "sigterm",
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            // Nowhere else to say it: standard error is the pod's log.
            let _ = writeln!(io::stderr(), "workload: {message}");
            ExitCode::from(2)
        }
    }
}

async fn run() -> Result<u8, String> {
    let options = parse(env::args().skip(1))?;
    // Before the start line: whoever reads that line may send the signal at once.
    let terminations = signal(SignalKind::terminate())
        .map_err(|error| format!("cannot listen for SIGTERM: {error}"))?;
    let mut report = Report::open(options.record.as_deref())?;
    report.event("start", "")?;
    let end = work(&options, terminations).await;
    let code = if end == End::Terminated { EXIT_SIGTERM } else { options.exit_code };
    report.event("end", &format!(",\"reason\":\"{}\",\"exit\":{code}", end.reason()))?;
    Ok(code)
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(name) = arguments.next() {
        if name == "--ignore-sigterm" {
            options.ignore_sigterm = true;
            continue;
        }
        let value =
            arguments.next().ok_or_else(|| format!("{name} is no option, or needs a value"))?;
        let invalid = || format!("{name} does not take {value:?}");
        match name.as_str() {
            "--seconds" => {
                let seconds: f64 = value.parse().map_err(|_| invalid())?;
                options.run = Some(Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?);
            }
            "--until-file" => options.until_file = Some(PathBuf::from(&value)),
            "--exit-code" => options.exit_code = value.parse().map_err(|_| invalid())?,
            "--record" => options.record = Some(PathBuf::from(&value)),
            _ => return Err(format!("{name} is no option")),
        }
    }
    Ok(options)
}

/// Waits for the first of what may end the work.
async fn work(options: &Options, mut terminations: Signal) -> End {
    let time_over = async {
        match options.run {
            Some(run) => time::sleep_until(Instant::now() + run).await,
            None => std::future::pending().await,
        }
    };
    let file_there = async {
        match &options.until_file {
            Some(path) => appears(path).await,
            None => std::future::pending().await,
        }
    };
    let terminated = async {
        terminations.recv().await;
        if options.ignore_sigterm {
            // The handler stays in place; only SIGKILL, time or the file end the work.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = time_over => End::Time,
        () = file_there => End::File,
        () = terminated => End::Terminated,
    }
}

async fn appears(path: &Path) {
    let mut poll = time::interval(FILE_POLL);
    while !path.exists() {
        poll.tick().await;
    }
}

/// Where the events go.
struct Report {
    /// What every line says: who the pod is and which GPUs it sees, as JSON members.
    identity: String,
    file: Option<File>,
}

impl Report {
    fn open(folder: Option<&Path>) -> Result<Self, String> {
        let name = variable("POD_NAME").map_or_else(host_name, Ok)?;
        let pod = match variable("POD_NAMESPACE") {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.clone(),
        };
        let uid = variable("POD_UID").or_else(mounted_uid).unwrap_or_default();
        let file_name = if uid.is_empty() { &name } else { &uid };
        let identity = format!(
            "\"pod\":{},\"uid\":{},\"node\":{},\"gpus\":{}",
            json_string(&pod),
            json_string(&uid),
            json_string(&variable("NODE_NAME").unwrap_or_default()),
            json_list(&gpus()),
        );
        let file = folder.map(|folder| record_file(folder, file_name)).transpose()?;
        Ok(Self { identity, file })
    }

    /// Writes one line, to be seen by a reader at once.
    #[expect(clippy::disallowed_methods, reason = "a job of its own, apart from what is replayed")]
    fn event(&mut self, event: &str, more: &str) -> Result<(), String> {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_err(|error| format!("the clock stands before 1970: {error}"))?;
        let line = format!(
            "{{\"event\":\"{event}\",\"time_ms\":{},{}{more}}}\n",
            since_epoch.as_millis(),
            self.identity,
        );
        if let Some(file) = &mut self.file {
            file.write_all(line.as_bytes())
                .map_err(|error| format!("cannot write the record: {error}"))?;
        }
        let mut out = io::stdout().lock();
        out.write_all(line.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| format!("cannot write to standard output: {error}"))
    }
}

fn record_file(folder: &Path, name: &str) -> Result<File, String> {
    let path = folder.join(format!("{name}.jsonl"));
    fs::create_dir_all(folder)
        .and_then(|()| OpenOptions::new().create(true).append(true).open(&path))
        .map_err(|error| format!("cannot open {}: {error}", path.display()))
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The pod's name, unless the pod says otherwise.
fn host_name() -> Result<String, String> {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .map_err(|error| format!("cannot read the host name: {error}"))
}

/// Kubelet mounts `/etc/hosts` from a folder that is named after the pod's UID.
fn mounted_uid() -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (source, target) = (fields.next()?, fields.next()?);
        let source = source.strip_suffix("/etc-hosts").filter(|_| target == "/etc/hosts")?;
        let (folder, uid) = source.rsplit_once('/')?;
        folder.ends_with("/pods").then(|| uid.to_owned())
    })
}

/// The container's GPUs: as a variable lists them, else the device files that it can see.
fn gpus() -> Vec<String> {
    for variable in GPU_VARIABLES {
        if let Ok(value) = env::var(variable) {
            return value
                .split(',')
                .map(str::trim)
                .filter(|gpu| !gpu.is_empty() && *gpu != "void" && *gpu != "none")
                .map(str::to_owned)
                .collect();
        }
    }
    let Ok(entries) = fs::read_dir("/dev") else {
        return Vec::new();
    };
    let mut devices: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_gpu_device(name))
        .collect();
    devices.sort();
    devices
}

/// `nvidia0` is a GPU, `nvidiactl` is not.
fn is_gpu_device(name: &str) -> bool {
    name.strip_prefix("nvidia").is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn json_list(items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| json_string(item)).collect();
    format!("[{}]", items.join(","))
}

fn json_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}
