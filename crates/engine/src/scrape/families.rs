//! Looks up the known metric names of all engines.

use std::collections::HashMap;
use std::sync::LazyLock;

use tokometer_decode::Engine;
use tokometer_decode::engine::Source;

/// All sources with their engines, in order of preference: if a page has several sources of a quantity, the first is
/// used.
pub static SOURCES: LazyLock<Vec<(Engine, &'static Source)>> = LazyLock::new(|| {
    let of = |engine: Engine| engine.info().metrics.iter().map(move |source| (engine, source));
    Engine::ALL.into_iter().flat_map(of).collect()
});

/// Position of a term: index of the source, index of the term in the source.
pub(crate) type Place = (usize, usize);

/// Every term by its name, normalized by [`plain`].
static BY_NAME: LazyLock<HashMap<Vec<u8>, Vec<Place>>> = LazyLock::new(|| {
    let mut places: HashMap<Vec<u8>, Vec<Place>> = HashMap::new();
    for (number, (_, source)) in SOURCES.iter().enumerate() {
        for (which, term) in source.terms.iter().enumerate() {
            places.entry(plain(term.name.as_bytes()).collect()).or_default().push((number, which));
        }
    }
    places
});

/// Length of the longest name in the table.
static LONGEST: LazyLock<usize> = LazyLock::new(|| BY_NAME.keys().map(Vec::len).max().unwrap_or(0));

/// Replaces `:` in a name with `_`, as collectors and relabelling rules may do.
fn plain(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().map(|byte| if *byte == b':' { b'_' } else { *byte })
}

/// The terms with this name. `room` is a reusable buffer.
pub(crate) fn places(name: &[u8], room: &mut Vec<u8>) -> &'static [Place] {
    if name.len() > *LONGEST {
        return &[];
    }
    room.clear();
    room.extend(plain(name));
    BY_NAME.get(room.as_slice()).map(Vec::as_slice).unwrap_or_default()
}
