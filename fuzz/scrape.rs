//! What of `scrape` reads a page; the rest asks for it.

#[path = "../src/scrape/exposition.rs"]
pub mod exposition;
#[path = "../src/scrape/families.rs"]
pub mod families;
#[path = "../src/scrape/page.rs"]
pub mod page;
#[path = "../src/scrape/state.rs"]
pub mod state;
