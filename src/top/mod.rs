//! `tokometer top`: what passes at this moment, drawn in a terminal from the feed of the live page.
//!
//! `feed` asks the admin server, `view` is what a person chose, `draw` makes a canvas of a snapshot, `canvas` makes text or
//! terminal codes of that, `terminal` and `keys` are the two directions of the terminal, and `run` joins them.

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
