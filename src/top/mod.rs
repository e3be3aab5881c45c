//! `tokometer top`: current traffic in a terminal, from the feed of the live page.
//!
//! `feed` queries the admin server, `view` holds the user's choices, `draw` draws a snapshot on a canvas, `canvas`
//! renders it as text or terminal codes, `terminal` and `keys` are terminal output and input, and `run` connects them.

mod canvas;
mod distribution;
mod draw;
mod feed;
mod glyphs;
mod keys;
mod numbers;
mod objectives;
mod plain;
mod run;
mod settings;
mod streams;
mod terminal;
mod timeline;
mod view;

pub use canvas::Canvas;
pub use draw::{Frame, draw};
pub use feed::Trouble;
pub use glyphs::Glyphs;
pub use plain::line;
pub use run::{Error, run};
pub use settings::Settings;
pub use view::{Sort, View};
