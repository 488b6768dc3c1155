//! Where events go: lines on stderr, as text for people or as JSON for machines.
//!
//! A thread of its own does the writing, so that a terminal or a pipe that does not take its lines
//! never holds a request up, nor the end of the process. Lines gather for a few milliseconds and are
//! written together; what was logged before an orderly end is always written. If it falls far behind, lines are dropped and
//! counted: plain ones first, then warnings and errors, and changes by operators last (their durable
//! copy is in the operation's history). Secrets are not filtered here: they must not be in an event in
//! the first place.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use semel::{Clock, SystemClock};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{MakeWriter, SubscriberBuilder};

/// Lines waiting to be written, of each urgency and above.
const PLAIN_WAITING_MAX: usize = 8192;
const WARNINGS_WAITING_MAX: usize = 12_288;
const LINES_WAITING_MAX: usize = 16_384;
/// Most bytes written in one go, but for one line.
const BATCH_BYTES_MAX: usize = 64 << 10;
/// How long lines gather before they are written together. A request that logs a line wakes nobody then;
/// a process that is killed loses this much of its log.
const GATHER: Duration = Duration::from_millis(5);
/// How long the end of the process waits for the last lines.
const LAST_LINES_WAIT: Duration = Duration::from_secs(2);

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("the log filter {filter:?} cannot be read: {source}; write for example `info,semel=debug`")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[error("logging was set up before")]
    Twice,
}

/// Writes what is still waiting when it is dropped. Keep it until the end of `main`.
#[must_use]
pub(crate) struct Logging {
    queue: SyncSender<Line>,
    ended: Receiver<()>,
    patience: Duration,
}

impl Drop for Logging {
    fn drop(&mut self) {
        // The subscriber keeps a sender for good, so the end is a message. It waits in a thread of its
        // own: a stuck output must not keep the process from ending.
        let queue = self.queue.clone();
        let sending = std::thread::Builder::new().spawn(move || queue.send(Line::End));
        if sending.is_ok() {
            let _ = self.ended.recv_timeout(self.patience);
        }
    }
}

/// Sends events of this process to stderr. `filter` is as `EnvFilter` reads it: `info,semel=debug`.
pub(crate) fn init(json: bool, filter: &str) -> Result<Logging, Invalid> {
    let (sink, logging) = Sink::start(json, io::stderr());
    let subscriber = subscriber(json, filter, sink)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| Invalid::Twice)?;
    Ok(logging)
}

fn subscriber(json: bool, filter: &str, sink: Sink) -> Result<Box<dyn Subscriber + Send + Sync>, Invalid> {
    let filter =
        EnvFilter::try_new(filter).map_err(|source| Invalid::Filter { filter: filter.to_owned(), source })?;
    let common = SubscriberBuilder::default().with_timer(StoreTime).with_env_filter(filter).with_writer(sink);
    Ok(match json {
        true => Box::new(common.json().flatten_event(true).with_span_list(false).finish()),
        false => Box::new(common.with_ansi(false).finish()),
    })
}

/// The same clock and the same writing as everywhere else.
struct StoreTime;

impl FormatTime for StoreTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        writer.write_str(&crate::time::write(SystemClock.now()))
    }
}

enum Line {
    Text(Vec<u8>),
    End,
}

/// The entrance to the writing thread.
#[derive(Clone)]
struct Sink {
    queue: SyncSender<Line>,
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct Backlog {
    waiting: AtomicUsize,
    dropped: AtomicU64,
}

impl Sink {
    fn start(json: bool, out: impl Write + Send + 'static) -> (Self, Logging) {
        let (queue, lines) = sync_channel(LINES_WAITING_MAX);
        let (end, ended) = sync_channel(1);
        let backlog = Arc::new(Backlog::default());
        let seen = backlog.clone();
        let work = move || {
            write_all(&lines, &seen, json, out);
            let _ = end.send(());
        };
        std::thread::Builder::new().name("semel-log".into()).spawn(work).expect("a thread can be started");
        (Self { queue: queue.clone(), backlog }, Logging { queue, ended, patience: LAST_LINES_WAIT })
    }

    /// Puts a line into the queue if there is room for its urgency; never waits.
    fn offer(&self, line: Vec<u8>, room: usize) {
        let taken = self.backlog.waiting.load(Ordering::Relaxed) < room && {
            self.backlog.waiting.fetch_add(1, Ordering::Relaxed);
            let sent = self.queue.try_send(Line::Text(line)).is_ok();
            if !sent {
                self.backlog.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            sent
        };
        if !taken {
            self.backlog.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Collects what is waiting and writes it together. Errors of the output are nobody's to report to.
fn write_all(lines: &Receiver<Line>, backlog: &Backlog, json: bool, mut out: impl Write) {
    let mut batch = Vec::new();
    let mut flush = |batch: &mut Vec<u8>| {
        let missed = backlog.dropped.swap(0, Ordering::Relaxed);
        if missed > 0 {
            batch.extend_from_slice(dropped_line(missed, json).as_bytes());
        }
        let _ = out.write_all(batch).and_then(|()| out.flush());
        batch.clear();
    };
    let mut next = lines.recv().ok();
    while let Some(Line::Text(line)) = next {
        backlog.waiting.fetch_sub(1, Ordering::Relaxed);
        batch.extend_from_slice(&line);
        if batch.len() >= BATCH_BYTES_MAX {
            flush(&mut batch);
        }
        next = match lines.try_recv() {
            Ok(line) => Some(line),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                flush(&mut batch);
                let first = lines.recv().ok();
                std::thread::sleep(GATHER);
                first
            }
        };
    }
    flush(&mut batch);
}

fn dropped_line(missed: u64, json: bool) -> String {
    let time = crate::time::write(SystemClock.now());
    match json {
        true => format!(
            "{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"target\":\"semel::log\",\"message\":\"lines were dropped\",\"dropped\":{missed}}}\n"
        ),
        false => format!("{time}  WARN semel::log: lines were dropped dropped={missed}\n"),
    }
}

/// One event on its way.
struct Entry {
    sink: Sink,
    line: Vec<u8>,
    /// How many lines may wait before it is dropped.
    room: usize,
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Entry;

    fn make_writer(&'a self) -> Entry {
        Entry { sink: self.clone(), line: Vec::with_capacity(256), room: PLAIN_WAITING_MAX }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Entry {
        let mut entry = self.make_writer();
        if *meta.level() <= Level::WARN {
            entry.room = WARNINGS_WAITING_MAX;
        } else if meta.target() == "semel::audit" {
            entry.room = LINES_WAITING_MAX;
        }
        entry
    }
}

impl Write for Entry {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.sink.offer(std::mem::take(&mut self.line), self.room);
    }
}

/// A page to write on, for tests that read what was logged.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Page(Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl Page {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[cfg(test)]
impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(json: bool, filter: &str, work: impl FnOnce()) -> String {
        let page = Page::default();
        let (sink, logging) = Sink::start(json, page.clone());
        tracing::subscriber::with_default(subscriber(json, filter, sink).unwrap(), work);
        drop(logging);
        page.text()
    }

    #[test]
    fn an_event_is_one_line_of_json_with_its_request() {
        // G-80
        let trace = crate::gateway::trace::Trace::enter(&mut http::HeaderMap::new());
        let shown = logged(true, "info", || {
            let span = trace.span();
            let _in = span.enter();
            tracing::info!(target: "semel::decision", route = "charge", decision = "replayed", key = "k-\n1", "decided");
            tracing::debug!("not wanted");
        });
        assert_eq!(shown.lines().count(), 1, "{shown}");
        let event: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(event["target"], "semel::decision");
        assert_eq!(event["decision"], "replayed");
        assert_eq!(event["key"], "k-\n1");
        assert_eq!(event["span"]["trace_id"], trace.parent.trace_id());
        assert_eq!(event["span"]["correlation_id"], trace.correlation.to_str().unwrap());
        assert!(event["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{shown}");
    }

    #[test]
    fn text_is_one_plain_line_too() {
        let shown = logged(false, "semel=info", || {
            tracing::warn!(target: "semel::audit", by = "ops", "an operator's call");
            tracing::info!(target: "other", "filtered");
        });
        assert_eq!(shown.lines().count(), 1, "{shown}");
        assert!(shown.contains("WARN semel::audit: an operator's call by=\"ops\""), "{shown}");
        assert!(!shown.contains('\u{1b}'), "no colours in a log");
    }

    #[test]
    fn a_filter_that_makes_no_sense_is_named() {
        let (sink, _logging) = Sink::start(false, io::sink());
        let error = subscriber(false, "info,semel=loud", sink).err().unwrap().to_string();
        assert!(error.contains("info,semel=loud") && error.contains("semel=debug"), "{error}");
    }

    /// An output that takes nothing until it is told to.
    struct Stuck(std::sync::mpsc::Receiver<()>, Page);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_output_holds_nobody_up_and_what_was_dropped_is_told() {
        let (release, stuck) = std::sync::mpsc::channel();
        let page = Page::default();
        let (sink, logging) = Sink::start(false, Stuck(stuck, page.clone()));
        let plain = 3 * LINES_WAITING_MAX;
        tracing::subscriber::with_default(subscriber(false, "info", sink).unwrap(), || {
            for number in 0..plain {
                tracing::info!(number, "line");
            }
            tracing::warn!("important");
            tracing::info!(target: "semel::audit", by = "ops", "an operator's call");
        });
        drop(release);
        drop(logging);
        let shown = page.text();
        let written = shown.lines().filter(|line| line.contains("number=")).count();
        let dropped: usize =
            shown.lines().filter_map(|line| line.split_once(" dropped=")?.1.parse::<usize>().ok()).sum();
        assert!(written >= PLAIN_WAITING_MAX, "{written}");
        assert_eq!(written + dropped, plain);
        assert!(shown.contains("important") && shown.contains("an operator's call"), "they came through");
    }

    #[test]
    fn a_stuck_output_does_not_keep_the_process_from_ending() {
        let (release, stuck) = std::sync::mpsc::channel();
        let (sink, mut logging) = Sink::start(false, Stuck(stuck, Page::default()));
        logging.patience = Duration::from_millis(1);
        sink.offer(b"line\n".to_vec(), LINES_WAITING_MAX);
        drop(logging);
        drop(release);
    }
}
