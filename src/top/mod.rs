//! `tokometer top`: current traffic in a terminal, from the feed of the live page.
//!
//! `feed` queries the admin server, `view` holds the user's choices, `screen` is the ratatui widget that shows a
//! snapshot, `summary` has its rows, `streams` its table, and `run` connects them with the terminal.

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
