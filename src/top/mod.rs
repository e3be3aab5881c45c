//! `tokometer top`: current traffic in a terminal, from the feed of the live page.
//!
//! `feed` queries the admin server, `view` holds the user's choices, and `screen` is the ratatui widget that shows a
//! snapshot. `summary` builds the upper rows of the screen, `streams` the table, and `run` connects all parts with the
//! terminal.

mod chart;
mod feed;
mod numbers;
mod run;
mod screen;
mod streams;
mod summary;
mod timeline;
mod view;

pub use chart::Glyphs;
pub use feed::FeedError;
pub use run::{Display, Error, Settings, run};
pub use screen::Screen;
pub use view::{Sort, View};
