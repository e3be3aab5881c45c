//! Counts what a thread allocates, and how much of it it holds.
// A global allocator cannot be written without `unsafe`; this one only counts and hands on.
#![allow(unsafe_code)]

use std::alloc::GlobalAlloc;
use std::alloc::Layout;
use std::alloc::System;
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call goes to `System` as it came; the counter is a plain cell of the thread and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        hold(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn count(bytes: isize) {
    hold(bytes);
    // The counter may be gone while a thread ends; nobody asks then.
    ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1)).unwrap_or(());
}

fn hold(bytes: isize) {
    HELD.try_with(|held| held.set(held.get() + bytes)).unwrap_or(());
}

/// What `work` returned, and the bytes that this thread allocated for it and has not freed.
pub(crate) fn held_after<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    let result = work();
    (result, usize::try_from(HELD.get() - before).unwrap_or(0))
}

/// How often this thread allocated while `work` ran.
pub(crate) fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn a_vector_is_counted() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(100)))), 1);
    assert_eq!(allocations_of(|| ()), 0);
    assert_eq!(held_after(|| std::hint::black_box(Vec::<u8>::with_capacity(100))).1, 100);
    assert_eq!(held_after(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(100)))).1, 0);
}
