//! The part of `scrape` that parses a page; the rest requests it.

#[path = "../crates/engine/src/scrape/exposition.rs"]
pub mod exposition;
#[path = "../crates/engine/src/scrape/families.rs"]
pub mod families;
#[path = "../crates/engine/src/scrape/page.rs"]
pub mod page;
#[path = "../crates/engine/src/scrape/state.rs"]
pub mod state;
