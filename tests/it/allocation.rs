//! Counts what a thread allocates.
// A global allocator cannot be written without `unsafe`; this one only counts and hands on.
#![allow(unsafe_code)]

use std::alloc::GlobalAlloc;
use std::alloc::Layout;
use std::alloc::System;
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call goes to `System` as it came; the counter is a plain cell of the thread and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

fn count() {
    // The counter may be gone while a thread ends; nobody asks then.
    ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1)).unwrap_or(());
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
}
