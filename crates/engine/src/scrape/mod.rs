//! The engine's own metrics: scraped every few seconds and converted to common names.
//!
//! A separate thread requests the engine's page, never on a relayed connection. `exposition` parses the page in fixed
//! memory, `families` is the table of names, `page` keeps the series with known names, `state` computes values from
//! page to page, and `watch` keeps the states of the last hour with their times.

pub mod exposition;

mod docs;
mod families;
mod find;
mod page;
mod request;
mod scraper;
mod settings;
mod state;
mod watch;

pub use docs::markdown;
pub use families::{Quantity, SOURCES, Source, Term};
pub use page::Page;
pub use request::{Dial, Wire};
pub use scraper::{Engines, Scraper};
pub use settings::{Settings, Target};
pub use state::{Ratio, RatioSource, State, Tracker};
pub use watch::{Failure, Figures, Watch};
