//! The part of `libz-ng-sys` that `flate2` calls, on the pure-Rust `zlib-rs`.
//!
//! `pingora-core` turns on flate2's `zlib-ng` backend, and building zlib-ng needs cmake. This crate stands in its
//! place by `[patch.crates-io]`, so that a machine with only Rust and a C compiler builds tokometer. It keeps
//! flate2's view of `z_stream` (allocator functions that are never null) over zlib-rs's (nullable ones); the two
//! have one layout, which the assertions below hold.
#![allow(non_camel_case_types, non_snake_case)]

use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::mem::{offset_of, size_of};

pub use libz_rs_sys::{
    Bytef, Z_BLOCK, Z_BUF_ERROR, Z_DATA_ERROR, Z_DEFAULT_STRATEGY, Z_DEFLATED, Z_ERRNO, Z_FINISH, Z_FULL_FLUSH,
    Z_MEM_ERROR, Z_NEED_DICT, Z_NO_FLUSH, Z_OK, Z_PARTIAL_FLUSH, Z_STREAM_END, Z_STREAM_ERROR, Z_SYNC_FLUSH,
    Z_VERSION_ERROR, internal_state, uInt, uLong, voidpf, zlibVersion,
};

/// An allocator function, called with the stream's `opaque`, a count and a size in bytes.
pub type alloc_func = unsafe extern "C" fn(voidpf, uInt, uInt) -> voidpf;
/// The function that frees what an [`alloc_func`] gave.
pub type free_func = unsafe extern "C" fn(voidpf, voidpf);
/// zlib-ng's name for the size type of `total_in` and `total_out`.
pub type z_size = c_ulong;
/// zlib-ng's name for the type of a checksum.
pub type z_checksum = c_ulong;

/// zlib's stream, as flate2 fills it.
#[repr(C)]
#[derive(Debug)]
pub struct z_stream {
    pub next_in: *mut Bytef,
    pub avail_in: uInt,
    pub total_in: z_size,
    pub next_out: *mut Bytef,
    pub avail_out: uInt,
    pub total_out: z_size,
    pub msg: *mut c_char,
    pub state: *mut internal_state,
    pub zalloc: alloc_func,
    pub zfree: free_func,
    pub opaque: *mut c_void,
    pub data_type: c_int,
    pub adler: z_checksum,
    pub reserved: uLong,
}

/// A pointer to a stream.
pub type z_streamp = *mut z_stream;

macro_rules! same_layout {
    ($($field:ident),+) => {
        const _: () = {
            assert!(size_of::<z_stream>() == size_of::<libz_rs_sys::z_stream>());
            $(assert!(offset_of!(z_stream, $field) == offset_of!(libz_rs_sys::z_stream, $field));)+
        };
    };
}
same_layout!(
    next_in, avail_in, total_in, next_out, avail_out, total_out, msg, state, zalloc, zfree, opaque, data_type, adler,
    reserved
);

macro_rules! forward {
    ($($name:ident($($arg:ident: $kind:ty),*);)+) => {$(
        /// zlib's function of this name.
        ///
        /// # Safety
        /// As in zlib: `strm` points to a stream that was initialised (or, for an `Init` function, whose allocator
        /// and `opaque` fields are set), and its buffers are valid for the lengths beside them.
        pub unsafe extern "C" fn $name(strm: z_streamp, $($arg: $kind),*) -> c_int {
            // SAFETY: the caller's promise is the callee's; the two stream types have one layout (asserted above).
            unsafe { libz_rs_sys::$name(strm.cast(), $($arg),*) }
        }
    )+};
}
forward! {
    deflate(flush: c_int);
    deflateEnd();
    deflateReset();
    deflateParams(level: c_int, strategy: c_int);
    deflateSetDictionary(dictionary: *const Bytef, length: uInt);
    deflateInit2_(level: c_int, method: c_int, window_bits: c_int, mem_level: c_int, strategy: c_int,
        version: *const c_char, stream_size: c_int);
    inflate(flush: c_int);
    inflateEnd();
    inflateReset2(window_bits: c_int);
    inflateSetDictionary(dictionary: *const Bytef, length: uInt);
    inflateInit2_(window_bits: c_int, version: *const c_char, stream_size: c_int);
}
