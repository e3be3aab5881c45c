//! Measures the allocations of a thread and the memory they keep.

use allocation_counter::measure;

/// Returns the result of `work`, and the number of bytes that this thread allocated during `work` and has not freed.
pub(crate) fn held_after<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let mut result = None;
    let held = measure(|| result = Some(work())).bytes_current;
    (result.expect("work ran"), usize::try_from(held).unwrap_or(0))
}

/// Number of allocations of this thread during `work`.
pub(crate) fn allocations_of(work: impl FnOnce()) -> u64 {
    measure(work).count_total
}

#[test]
fn vector_allocation_is_counted() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(100)))), 1);
    assert_eq!(allocations_of(|| ()), 0);
    assert_eq!(held_after(|| std::hint::black_box(Vec::<u8>::with_capacity(100))).1, 100);
    assert_eq!(held_after(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(100)))).1, 0);
}
