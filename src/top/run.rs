//! Connects the feed, the keys and the screen.

use std::io;
use std::io::IsTerminal;
use std::io::Read;
use std::io::Write;
use std::sync::mpsc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;

use crate::client::Caller;
use crate::top::draw::Frame;
use crate::top::draw::draw;
use crate::top::draw::page;
use crate::top::feed;
use crate::top::feed::Trouble;
use crate::top::glyphs::Glyphs;
use crate::top::keys::Key;
use crate::top::keys::Keys;
use crate::top::plain;
use crate::top::settings::Settings;
use crate::top::terminal;
use crate::top::terminal::Terminal;
use crate::top::view::View;
use tokometer_telemetry::live::snapshot::Snapshot;

/// Timeout of a snapshot request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Width and height of a single snapshot without a terminal.
const UNWATCHED: (usize, usize) = (100, 40);

/// Synchronized update: supporting terminals show the screen only when it is complete; others ignore the code.
const BEGIN: &str = "\x1b[?2026h";
const END: &str = "\x1b[?2026l";

/// Why `top` ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No snapshot is available.
    #[error(transparent)]
    Feed(#[from] Trouble),
    /// Writing to the terminal or to stdout failed.
    #[error("cannot write to the terminal: {0}")]
    Output(#[from] io::Error),
}

/// An event during interactive use.
enum Happening {
    Told(Result<Box<Snapshot>, Trouble>),
    Pressed(Key),
    Resized,
    Ended,
}

/// Shows snapshots until the user or a signal ends it; without a terminal it prints one line per snapshot.
///
/// # Errors
/// If the terminal cannot be used, or, without a terminal, if the first snapshot cannot be read.
pub fn run(settings: &Settings, out: &mut impl Write) -> Result<(), Error> {
    let mut caller = Caller::new(&settings.admin, PATIENCE);
    if settings.once {
        return once(settings, &mut caller, out);
    }
    if io::stdout().is_terminal() && !settings.dumb {
        watch(settings, caller)
    } else {
        lines(settings, &mut caller, out)
    }
}

fn glyphs(settings: &Settings) -> Glyphs {
    if settings.ascii { Glyphs::ASCII } else { Glyphs::BLOCKS }
}

/// Prints one snapshot without escape codes, as tall as needed.
fn once(settings: &Settings, caller: &mut Caller, out: &mut impl Write) -> Result<(), Error> {
    let snapshot = feed::ask(caller)?;
    let frame = Frame {
        snapshot: Some(&snapshot),
        admin: settings.admin.authority(),
        trouble: None,
        view: View::default(),
        glyphs: glyphs(settings),
    };
    let (width, _) = terminal::size().unwrap_or(UNWATCHED);
    let picture = draw(&frame, width, UNWATCHED.1).plain();
    // Empty stream rows and the key help are omitted here.
    let mut lines: Vec<&str> = picture.lines().collect();
    lines.pop();
    while lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    written(writeln!(out, "{}", lines.join("\n")).and_then(|()| out.flush()))
}

/// Treats a reader that closed the pipe (`| head`) as success.
fn written(result: io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn lines(settings: &Settings, caller: &mut Caller, out: &mut impl Write) -> Result<(), Error> {
    let mut line = plain::line(&feed::ask(caller)?);
    loop {
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Ok(()) => {}
            stopped => return written(stopped),
        }
        thread::sleep(settings.interval);
        line = match feed::ask(caller) {
            Ok(snapshot) => plain::line(&snapshot),
            // The server may be back at the next attempt.
            Err(trouble) => trouble.to_string(),
        };
    }
}

fn watch(settings: &Settings, caller: Caller) -> Result<(), Error> {
    let (told, happenings) = mpsc::channel();
    let interval = settings.interval;
    // These threads end with the process: their blocking reads cannot be interrupted.
    let (feed, keys, signals) = (told.clone(), told.clone(), told);
    thread::Builder::new().name("feed".to_owned()).spawn(move || ask_on(caller, interval, &feed))?;
    let terminal = Terminal::take()?;
    if io::stdin().is_terminal() {
        thread::Builder::new().name("keys".to_owned()).spawn(move || read_on(&keys))?;
    }
    thread::Builder::new().name("signals".to_owned()).spawn(move || listen_on(&signals))?;

    let mut snapshot: Option<Box<Snapshot>> = None;
    let mut trouble: Option<String> = None;
    let mut view = View::default();
    loop {
        let (width, height) = terminal.size();
        let frame = Frame {
            snapshot: snapshot.as_deref(),
            admin: settings.admin.authority(),
            trouble: trouble.as_deref(),
            view,
            glyphs: glyphs(settings),
        };
        let shown = page(&frame, width, height);
        terminal.show(&format!("{BEGIN}{}{END}", draw(&frame, width, height).ansi(settings.colour)))?;
        match happenings.recv() {
            Ok(Happening::Told(_)) if view.paused => {}
            Ok(Happening::Told(Ok(new))) => (snapshot, trouble) = (Some(new), None),
            Ok(Happening::Told(Err(why))) => trouble = Some(why.to_string()),
            Ok(Happening::Pressed(key)) => {
                let (streams, slow) = snapshot
                    .as_deref()
                    .map_or((0, 0), |snapshot| (snapshot.in_flight.streams.len(), snapshot.slowest.len()));
                if view.press(key, streams, slow, shown) {
                    return Ok(());
                }
            }
            Ok(Happening::Resized) => terminal.show("\x1b[2J")?,
            Ok(Happening::Ended) | Err(_) => return Ok(()),
        }
    }
}

/// Requests snapshots until the receiver is gone.
fn ask_on(mut caller: Caller, interval: Duration, told: &Sender<Happening>) {
    while told.send(Happening::Told(feed::ask(&mut caller).map(Box::new))).is_ok() {
        thread::sleep(interval);
    }
}

fn read_on(told: &Sender<Happening>) {
    let (mut keys, mut buffer) = (Keys::default(), [0; 256]);
    let mut input = io::stdin().lock();
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                for key in keys.read(buffer.get(..length).unwrap_or_default()) {
                    if told.send(Happening::Pressed(key)).is_err() {
                        return;
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Forwards signals. Without this a signal would end the program without restoring the terminal.
fn listen_on(told: &Sender<Happening>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async {
        let on = |kind| signal(kind).ok();
        let streams = (
            on(SignalKind::window_change()),
            on(SignalKind::terminate()),
            on(SignalKind::hangup()),
            on(SignalKind::interrupt()),
        );
        let (Some(mut resized), Some(mut terminated), Some(mut hung_up), Some(mut interrupted)) = streams else {
            return;
        };
        loop {
            let happening = tokio::select! {
                _ = resized.recv() => Happening::Resized,
                _ = terminated.recv() => Happening::Ended,
                _ = hung_up.recv() => Happening::Ended,
                _ = interrupted.recv() => Happening::Ended,
            };
            if told.send(happening).is_err() {
                return;
            }
        }
    });
}
