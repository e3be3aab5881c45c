//! Counts what a thread allocates, and how much of it it holds.

use allocation_counter::measure;

/// What `work` returned, and the bytes that this thread allocated for it and has not freed.
pub(crate) fn held_after<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let mut result = None;
    let held = measure(|| result = Some(work())).bytes_current;
    (result.expect("it ran"), usize::try_from(held).unwrap_or(0))
}

/// How often this thread allocated while `work` ran.
pub(crate) fn allocations_of(work: impl FnOnce()) -> u64 {
    measure(work).count_total
}

#[test]
fn a_vector_is_counted() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(100)))), 1);
    assert_eq!(allocations_of(|| ()), 0);
    assert_eq!(held_after(|| std::hint::black_box(Vec::<u8>::with_capacity(100))).1, 100);
    assert_eq!(held_after(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(100)))).1, 0);
}
