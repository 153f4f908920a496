//! The watcher of a local workspace: a thread that finds changes and tells them in bursts.
//!
//! Owns the thread, the rhythm and the choice of means. It begins with the first reader and ends with the workspace.
//! Directories are watched one by one through their descriptors, so that one swapped for a link is never followed;
//! ignored ones and `.git` are not watched, whatever they hold. Changes that this server makes there itself are told.

mod events;
mod polling;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{AtFlags, statat};

use self::events::{EventSource, WatchLimit};
use self::polling::PollingSource;
use super::Shared;
use super::confine::{Root, kind_of};
use super::read::mtime_ms;
use crate::workspace::changes::{Changes, Coverage, Limit, Pending, Seen, settle};
use crate::workspace::{Kind, WorkspacePath};

/// A burst is over when nothing was seen for this long.
const QUIET: Duration = Duration::from_millis(30);
/// A burst that does not end is told in parts.
const LONGEST_BURST: Duration = Duration::from_millis(250);
/// Changes of one burst; more are told as "look anew", which is less work for everybody.
const MAX_BURST: usize = 2000;
/// File systems whose files other machines or processes change without any event here, by their magic numbers: NFS,
/// SMB (three), FUSE (virtiofs too), 9P, Ceph, AFS, Lustre, GPFS.
const WITHOUT_EVENTS: [u32; 10] = [
    0x6969,
    0x517B,
    0xFE53_4D42,
    0xFF53_4D42,
    0x6573_5546,
    0x0102_1997,
    0x00C3_6400,
    0x5346_414F,
    0x0BD0_0BD0,
    0x4750_4653,
];

/// The changes of one workspace, and the thread that finds them once somebody reads.
pub struct Watch {
    begun: OnceLock<Begun>,
}

struct Begun {
    changes: Arc<Changes>,
    waker: Arc<Waker>,
}

impl Watch {
    /// Nothing is watched yet.
    pub fn new() -> Self {
        Self { begun: OnceLock::new() }
    }

    /// The changes; the first call begins to watch.
    pub fn begin(&self, shared: &Arc<Shared>) -> Arc<Changes> {
        let begun = self.begun.get_or_init(|| {
            let waker = Arc::new(Waker::new());
            let wake = waker.clone();
            let changes = Arc::new(Changes::new(move || wake.wake()));
            let (shared, found, woken) = (shared.clone(), changes.clone(), waker.clone());
            let thread = std::thread::Builder::new().name("watch".into());
            if let Err(error) = thread.spawn(move || run(&shared, &found, &woken)) {
                tracing::error!(%error, "changes of files cannot be watched: no thread");
            }
            Begun { changes, waker }
        });
        begun.changes.clone()
    }

    /// Notes a change that this server made, if anybody ever asked for changes.
    pub fn note(&self, note: impl FnOnce(&mut Pending)) {
        if let Some(begun) = self.begun.get() {
            begun.changes.note(note);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.get() {
            begun.waker.stop();
        }
    }
}

/// Wakes the thread.
struct Waker {
    /// `None` when the system has no descriptor left; then the thread looks by itself now and then.
    signal: Option<OwnedFd>,
    stopped: AtomicBool,
}

impl Waker {
    fn new() -> Self {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        if let Err(error) = &signal {
            tracing::warn!(%error, "own changes are told with a delay");
        }
        Self { signal: signal.ok(), stopped: AtomicBool::new(false) }
    }

    fn wake(&self) {
        if let Some(signal) = &self.signal {
            // A counter that is full wakes as well.
            let _full = rustix::io::write(signal, &1_u64.to_ne_bytes());
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn clear(&self) {
        if let Some(signal) = &self.signal {
            let _nothing_there = rustix::io::read(signal, &mut [0_u8; 8]);
        }
    }
}

/// How changes are found.
enum Source {
    Events(EventSource),
    Polling(PollingSource),
}

/// Chooses the means and takes the first look.
fn first_look(shared: &Shared) -> (Source, Coverage) {
    if !gives_events(&shared.root) {
        return start_polling(shared, Limit::NoEvents);
    }
    let mut events = match EventSource::new() {
        Ok(events) => events,
        Err(error) => {
            tracing::warn!(%error, "the system gives no more watches; changes of files are looked for");
            return start_polling(shared, Limit::WatchLimit);
        }
    };
    match events.watch_all(shared) {
        Ok(()) => {
            let coverage = events.coverage();
            (Source::Events(events), coverage)
        }
        Err(WatchLimit) => start_polling(shared, Limit::WatchLimit),
    }
}

fn start_polling(shared: &Shared, limit: Limit) -> (Source, Coverage) {
    let mut polling = PollingSource::new(limit);
    polling.look(shared, None);
    let coverage = polling.coverage();
    (Source::Polling(polling), coverage)
}

fn gives_events(root: &Root) -> bool {
    let magic = root.directory(&WorkspacePath::root()).ok().and_then(|root| rustix::fs::fstatfs(root).ok());
    // The numbers have 32 bits on every machine, whatever the field's type.
    magic.is_some_and(|status| !WITHOUT_EVENTS.contains(&u32::try_from(status.f_type & 0xFFFF_FFFF).unwrap_or(0)))
}

/// The thread.
fn run(shared: &Shared, changes: &Changes, waker: &Waker) {
    let (mut source, coverage) = first_look(shared);
    changes.set_coverage(coverage);
    tracing::debug!(?coverage, "changes of files are watched");
    let mut pending = Pending::new(MAX_BURST);
    let mut burst: Option<(Instant, Instant)> = None;
    while !waker.is_stopped() {
        wait(&source, waker, burst.is_some(), changes.has_readers());
        let found = collect(&mut source, shared, changes, &mut pending);
        let now = Instant::now();
        if found {
            burst = Some((burst.map_or(now, |(begin, _)| begin), now));
        }
        let over = burst.is_some_and(|(begin, newest)| now - newest >= QUIET || now - begin >= LONGEST_BURST);
        if over {
            burst = None;
            tell(&mut source, shared, changes, &mut pending);
        }
    }
}

fn wait(source: &Source, waker: &Waker, in_burst: bool, has_readers: bool) {
    let idle = match source {
        _ if in_burst => Some(QUIET),
        Source::Polling(polling) if has_readers => Some(polling.until_due()),
        _ if waker.signal.is_none() => Some(LONGEST_BURST),
        _ => None,
    };
    let timeout = idle.map(|idle| Timespec {
        tv_sec: i64::try_from(idle.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(idle.subsec_nanos()),
    });
    let mut watched = Vec::with_capacity(2);
    watched.extend(waker.signal.as_ref().map(|signal| PollFd::new(signal, PollFlags::IN)));
    if let Source::Events(events) = source {
        watched.push(PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN));
    }
    // Interrupted or not, the thread looks at everything next.
    let _woken = poll(&mut watched, timeout.as_ref());
    waker.clear();
}

/// Takes what there is; true if there was anything. A source that ran into a limit is replaced.
fn collect(source: &mut Source, shared: &Shared, changes: &Changes, pending: &mut Pending) -> bool {
    let before = pending.is_empty();
    let mut found = false;
    let taken = match source {
        Source::Events(events) => events.take(shared, pending),
        Source::Polling(polling) => {
            if changes.has_readers() && polling.until_due().is_zero() {
                polling.look(shared, Some(pending));
            }
            Ok(false)
        }
    };
    if let Ok(any) = taken {
        found |= any;
    } else {
        tracing::warn!("no more directories can be watched; changes of files are looked for from now on");
        let (polling, coverage) = start_polling(shared, Limit::WatchLimit);
        *source = polling;
        pending.lose();
        changes.set_coverage(coverage);
    }
    match changes.take_own() {
        Err(_) => pending.lose(),
        Ok(own) => {
            for seen in own {
                found = true;
                add_own(source, seen, pending);
            }
        }
    }
    found || (before && !pending.is_empty())
}

/// An own change that the source tells anyway is left to it, so that it is told once.
fn add_own(source: &mut Source, seen: Seen, pending: &mut Pending) {
    match seen {
        Seen::Touched { path, created } => {
            if !source.covers(&path) {
                pending.touch(path, created);
            }
        }
        Seen::Renamed { from, to } => match (source.covers(&from), source.covers(&to)) {
            (true, true) => {}
            (false, false) => pending.rename(&from, &to),
            (true, false) => pending.touch(to, false),
            (false, true) => pending.touch(from, false),
        },
    }
}

impl Source {
    fn covers(&self, path: &WorkspacePath) -> bool {
        match self {
            Self::Events(events) => events.covers(path),
            // Own changes are told at once, and the next look is told to know them.
            Self::Polling(_) => false,
        }
    }
}

fn tell(source: &mut Source, shared: &Shared, changes: &Changes, pending: &mut Pending) {
    if let Source::Events(events) = source {
        events.settle(pending);
        if events.rules_changed() && events.watch_all(shared).is_err() {
            let (polling, coverage) = start_polling(shared, Limit::WatchLimit);
            *source = polling;
            changes.set_coverage(coverage);
        }
    }
    match pending.take() {
        Err(_) => changes.lose(),
        Ok(seen) => {
            let settled = settle(seen, &|path| look(&shared.root, path));
            if let Source::Polling(polling) = source {
                polling.know(&shared.root, &settled);
            }
            changes.append(settled);
        }
    }
    let coverage = match source {
        Source::Events(events) => events.coverage(),
        Source::Polling(polling) => polling.coverage(),
    };
    changes.set_coverage(coverage);
}

/// Kind and modification time of what is at a path, links not followed.
fn look(root: &Root, path: &WorkspacePath) -> Option<(Kind, i64)> {
    let (parent, name) = root.parent(path).ok()?;
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((kind_of(&stat), mtime_ms(&stat)))
}
