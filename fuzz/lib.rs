//! The modules of tokometer that read foreign bytes, and what the targets share.
//!
//! The modules are taken by path: with tokometer as a dependency, a build takes twenty times as long. `relay` is only the
//! part of it that `observe` names.

#[path = "../src/budget/mod.rs"]
pub mod budget;
#[path = "../src/decode/mod.rs"]
pub mod decode;
#[path = "../src/measure/mod.rs"]
pub mod measure;
#[path = "../src/observe/mod.rs"]
pub mod observe;
#[path = "../src/relay/observer.rs"]
pub mod relay;
#[path = "../src/wire/mod.rs"]
pub mod wire;

pub mod cut;
pub mod queue;
pub mod scrape;
pub mod work;
