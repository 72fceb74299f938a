//! Cluster side: `sluice record` follows a cluster, says live what happens, and writes it down as
//! the JSON lines that `sluice timeline` draws.
//!
//! It only reads. Times are those at which the change was seen here, since the API server keeps
//! whole seconds only; with the watch close by they are some milliseconds late.

mod history;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::api::GpuNode;
use crate::api::names::LABEL_SHAPE;
use crate::clock;

pub use history::{History, Note};

/// What to follow, and where to write it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Follow the pods of this namespace only.
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// Write JSON lines to this file, for `sluice timeline`.
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Leave out when pods started and ended, because the containers write that themselves.
    #[arg(long)]
    pub without_runs: bool,
}

/// Why following a cluster ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The terminal cannot be written.
    #[error("cannot write to standard output")]
    Print(#[source] io::Error),
    /// There is no cluster to follow.
    #[error("cannot read the cluster's configuration")]
    Client(#[source] kube::Error),
}

enum Seen {
    Node(Box<GpuNode>),
    Pod(Box<Pod>),
    PodGone(Box<Pod>),
    Nothing,
}

/// Follows the cluster until `stop`.
pub async fn run(args: &Args, stop: CancellationToken) -> Result<(), Error> {
    let client = Client::try_default().await.map_err(Error::Client)?;
    let mut file = args.out.as_deref().map(open).transpose()?;
    let mut history = History::new(clock::now());
    let mut seen = follow(&client, args.namespace.as_deref());
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => break,
            event = seen.next() => event,
        };
        let Some(event) = event else { break };
        let now = clock::now();
        let notes = match event {
            Seen::Node(node) => history.node(&node, now),
            Seen::Pod(pod) => history.pod(&pod, now, false),
            Seen::PodGone(pod) => history.pod(&pod, now, true),
            Seen::Nothing => Vec::new(),
        };
        for note in notes {
            write_note(&note, args, &mut file)?;
        }
    }
    let Some((path, mut writer)) = file else { return Ok(()) };
    writer.flush().map_err(|source| Error::Write { path, source })
}

type Out = (PathBuf, BufWriter<File>);

fn open(path: &Path) -> Result<Out, Error> {
    let file = File::create(path);
    let file = file.map_err(|source| Error::Write { path: path.to_owned(), source })?;
    Ok((path.to_owned(), BufWriter::new(file)))
}

fn write_note(note: &Note, args: &Args, file: &mut Option<Out>) -> Result<(), Error> {
    match note {
        Note::Line(text) => {
            writeln!(io::stdout().lock(), "{text}").map_err(Error::Print)?;
        }
        Note::Run(_) if args.without_runs => {}
        Note::Record(record) | Note::Run(record) => {
            let Some((path, writer)) = file else { return Ok(()) };
            // Flushed at once: whoever stops us wants what was seen until then.
            writeln!(writer, "{record}")
                .and_then(|()| writer.flush())
                .map_err(|source| Error::Write { path: path.clone(), source })?;
        }
    }
    Ok(())
}

fn follow(client: &Client, namespace: Option<&str>) -> impl Stream<Item = Seen> + Unpin + use<> {
    let nodes: Api<GpuNode> = Api::all(client.clone());
    let pods: Api<Pod> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let config = watcher::Config::default().timeout(60);
    let labelled = config.clone().labels(LABEL_SHAPE);
    stream::select_all([
        watch(nodes, config, Seen::Node, |_| Seen::Nothing),
        watch(pods, labelled, Seen::Pod, Seen::PodGone),
    ])
}

type Events = stream::BoxStream<'static, Seen>;

fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    changed: fn(Box<K>) -> Seen,
    gone: fn(Box<K>) -> Seen,
) -> Events
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher(api, config)
        .default_backoff()
        .map(move |event| {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    changed(Box::new(object))
                }
                Ok(watcher::Event::Delete(object)) => gone(Box::new(object)),
                Ok(watcher::Event::Init | watcher::Event::InitDone) => Seen::Nothing,
                // The watcher lists again by itself; a cluster that is away may come back.
                Err(error) => {
                    tracing::warn!(%error, "the watch broke, and starts again");
                    Seen::Nothing
                }
            }
        })
        .boxed()
}
