//! Connects the feed, the keys and the screen.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, crossterm};
use tokio::signal::unix::{SignalKind, signal};

use crate::client::{Caller, Target};
use crate::top::chart::Glyphs;
use crate::top::feed::FeedError;
use crate::top::screen::Screen;
use crate::top::view::View;
use crate::top::{feed, summary};
use tokometer_settings::duration;
use tokometer_telemetry::live::snapshot::Snapshot;

/// Timeout of a snapshot request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Width and height of a single snapshot without a terminal.
const PRINTED: (u16, u16) = (100, 40);

/// What to watch and how to show it: the arguments of `top`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(after_help = "\
Examples:
  tokometer top
  tokometer top --admin http://10.0.0.7:9464
  tokometer top --once
  tokometer top --interval 10s | tee top.log

Keys: q quits; p pauses; s changes the order (age, wait, speed, tokens); up and down scroll; left and right select one \
of the slowest requests. Without a terminal, top prints one line per snapshot. NO_COLOR disables colors.")]
pub struct Settings {
    /// URL of the admin server to watch
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9464")]
    pub admin: Target,
    /// Print one snapshot and exit
    #[arg(long)]
    pub once: bool,
    /// Time between snapshots, such as 500ms or 10s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// When to end; `None`: when the user ends `top`.
    #[arg(skip)]
    pub end: Option<Instant>,
    /// Whether SIGHUP ends `top`. False in `tokometer run`, where a SIGHUP from a closed terminal ends the program and
    /// any other SIGHUP reloads the configuration.
    #[arg(skip = true)]
    pub hangup_ends: bool,
    /// What the terminal can show.
    #[arg(skip)]
    pub display: Display,
}

/// Shorter intervals show nothing new: one snapshot is created per second.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    if interval < MIN_INTERVAL { Err("write 100ms or more, such as 1s".to_owned()) } else { Ok(interval) }
}

/// What a terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Display {
    /// Use colours.
    pub colour: bool,
    /// Draw with ASCII only, for terminals without UTF-8.
    pub ascii: bool,
    /// The terminal cannot move its cursor: print lines.
    pub plain: bool,
}

impl Display {
    /// Whether `top` draws a screen on stdout; otherwise it prints lines.
    pub fn has_screen(&self) -> bool {
        io::stdout().is_terminal() && !self.plain
    }
}

impl Settings {
    fn has_ended(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// Why `top` ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No snapshot is available.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// Writing to the terminal or to stdout failed.
    #[error("cannot write to the terminal: {0}")]
    Output(#[from] io::Error),
}

/// An event during interactive use.
enum Event {
    Snapshot(Result<Box<Snapshot>, FeedError>),
    Terminal(crossterm::event::Event),
    End,
}

/// Shows snapshots until the user or a signal ends `top`; without a terminal it prints one line per snapshot.
///
/// # Errors
/// If the terminal cannot be used, or, without a terminal, if the first snapshot cannot be read.
pub fn run(settings: &Settings, out: &mut impl Write) -> Result<(), Error> {
    let mut caller = Caller::new(&settings.admin, TIMEOUT);
    if settings.once {
        return once(settings, &mut caller, out);
    }
    if settings.display.has_screen() { watch(settings, caller) } else { lines(settings, &mut caller, out) }
}

/// The screen for a snapshot; `None` if there is no snapshot.
fn screen<'a>(settings: &'a Settings, snapshot: Option<&'a Snapshot>) -> Screen<'a> {
    let glyphs = if settings.display.ascii { Glyphs::ASCII } else { Glyphs::BLOCKS };
    let (admin, colour) = (settings.admin.authority(), settings.display.colour);
    Screen { snapshot, admin, error: None, view: View::default(), glyphs, colour }
}

/// Prints one snapshot without escape codes.
fn once(settings: &Settings, caller: &mut Caller, out: &mut impl Write) -> Result<(), Error> {
    let snapshot = feed::fetch(caller)?;
    let size = if io::stdout().is_terminal() { crossterm::terminal::size().ok() } else { None };
    let width = size.map_or(PRINTED.0, |(width, _)| width);
    let text = screen(settings, Some(&snapshot)).text(width, PRINTED.1);
    ignore_closed_pipe(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// Treats a closed pipe (`| head`) as success.
fn ignore_closed_pipe(result: io::Result<()>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn lines(settings: &Settings, caller: &mut Caller, out: &mut impl Write) -> Result<(), Error> {
    let mut line = summary::line(&feed::fetch(caller)?);
    loop {
        match writeln!(out, "{line}").and_then(|()| out.flush()) {
            Ok(()) => {}
            failed => return ignore_closed_pipe(failed),
        }
        thread::sleep(settings.interval);
        if settings.has_ended() {
            return Ok(());
        }
        line = match feed::fetch(caller) {
            Ok(snapshot) => summary::line(&snapshot),
            // The server may be back at the next attempt.
            Err(error) => error.to_string(),
        };
    }
}

fn watch(settings: &Settings, mut caller: Caller) -> Result<(), Error> {
    let (sender, events) = mpsc::channel();
    let feed_settings = settings.clone();
    // These threads end with the process: their blocking reads cannot be interrupted.
    let (snapshots, keys) = (sender.clone(), sender.clone());
    spawn("feed", move || {
        while !feed_settings.has_ended()
            && snapshots.send(Event::Snapshot(feed::fetch(&mut caller).map(Box::new))).is_ok()
        {
            thread::sleep(feed_settings.interval);
        }
        snapshots.send(Event::End).ok();
    })?;
    let hangup_ends = settings.hangup_ends;
    spawn("signals", move || drop(forward_signals(&sender, hangup_ends)))?;
    let mut terminal = ratatui::try_init()?;
    spawn("keys", move || {
        while let Ok(event) = crossterm::event::read() {
            if keys.send(Event::Terminal(event)).is_err() {
                return;
            }
        }
    })?;
    let result = show(&mut terminal, settings, &events);
    ratatui::restore();
    Ok(result?)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Draws after every event, until the user or a signal ends `top`.
fn show(terminal: &mut DefaultTerminal, settings: &Settings, events: &Receiver<Event>) -> io::Result<()> {
    let mut snapshot: Option<Box<Snapshot>> = None;
    let mut error: Option<String> = None;
    let mut view = View::default();
    loop {
        let screen = Screen { error: error.as_deref(), view, ..screen(settings, snapshot.as_deref()) };
        let mut area = Rect::ZERO;
        terminal.draw(|frame| {
            area = frame.area();
            frame.render_widget(&screen, area);
        })?;
        let shown = screen.streams_shown(area);
        match events.recv() {
            Ok(Event::Snapshot(_)) if view.paused => {}
            Ok(Event::Snapshot(Ok(new))) => (snapshot, error) = (Some(new), None),
            Ok(Event::Snapshot(Err(why))) => error = Some(why.to_string()),
            Ok(Event::Terminal(event)) => {
                let (streams, slow) = snapshot
                    .as_deref()
                    .map_or((0, 0), |snapshot| (snapshot.in_flight.streams.len(), snapshot.slowest.len()));
                if event.as_key_press_event().is_some_and(|key| view.press(key, streams, slow, shown)) {
                    return Ok(());
                }
            }
            Ok(Event::End) | Err(_) => return Ok(()),
        }
    }
}

/// Forwards signals. Otherwise a signal would end the program without restoring the terminal.
fn forward_signals(events: &Sender<Event>, hangup_ends: bool) -> io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv(), if hangup_ends => {}
            _ = interrupt.recv() => {}
        }
        // Fails only if `show` has already returned.
        events.send(Event::End).ok();
        Ok(())
    })
}
