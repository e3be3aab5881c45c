//! A packet socket with a ring of blocks that the kernel fills and this process reads: `PACKET_RX_RING` with
//! `TPACKET_V3` (Linux, `Documentation/networking/packet_mmap.rst`). The only file of the crate with `unsafe`.
//!
//! Why no library: `netring` (version 0.32 after half a year, with an unstable API) adds etherparse, flowscope and
//! asynchronous adapters. It reports losses only as a total, but requests must be marked where the loss occurred
//! (`TP_STATUS_LOSING`). `af_packet` is GPL. libpcap is C.
//!
//! The status word at the start of a block shows whether the kernel or this process owns the block. [`Ring::block`]
//! lends a block after the kernel has handed it over (acquire); dropping the block returns it (release). In between,
//! the kernel does not write to the block, so its bytes can be borrowed. Offsets from the kernel are still checked
//! against the block.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libc::{
    TP_STATUS_CSUM_VALID, TP_STATUS_CSUMNOTREADY, sock_filter, sockaddr_ll, tpacket_block_desc, tpacket_hdr_v1,
    tpacket3_hdr,
};

use crate::packet::Checksum;

/// Length of a block: room for several packets of 64 KiB, a size common with segmentation offload. Longer packets are
/// truncated.
pub(super) const BLOCK_BYTES: usize = 512 * 1024;

/// Needed only for the kernel's check of the request; with `TPACKET_V3`, packets take only the space they need.
const FRAME_BYTES: usize = 2048;

/// After this time, the kernel hands over a block even if it is not full.
pub(super) const RETIRE: Duration = Duration::from_millis(20);

/// `PACKET_IGNORE_OUTGOING` (`linux/if_packet.h`): the kernel does not copy sent packets.
const IGNORE_OUTGOING: c_int = 23;

/// Offset of the link layer address (`sockaddr_ll`) in a packet's frame.
const ADDRESS: usize = size_of::<tpacket3_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

/// The index of the interface with this name.
pub(super) fn interface(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index > 0).then_some(index)
}

/// A packet socket and its ring.
#[derive(Debug)]
pub(super) struct Ring {
    socket: OwnedFd,
    memory: NonNull<u8>,
    blocks: usize,
    /// The block that the kernel hands over next.
    next: usize,
}

// SAFETY: only the ring owns the memory, which is accessed through borrows of the ring.
unsafe impl Send for Ring {}

/// The kernel's loss counters since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// Packets that were dropped because the ring was full.
    pub(super) packets: u64,
    /// Number of times the ring became full.
    pub(super) full: u64,
}

impl Ring {
    /// Opens a packet socket for packets on the interface with this index (0: all interfaces) that pass `filter`, with
    /// a ring of this many blocks. Packets begin with their IP header. `ignore_outgoing`: the filter drops all packets
    /// that this host sends, so the kernel need not copy them.
    pub(super) fn open(
        interface: u32,
        filter: &mut [sock_filter],
        blocks: usize,
        ignore_outgoing: bool,
    ) -> io::Result<Ring> {
        // Protocol 0: nothing is captured before the filter and the ring are set.
        // SAFETY: no pointers are passed.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let program =
            libc::sock_fprog { len: u16::try_from(filter.len()).unwrap_or(u16::MAX), filter: filter.as_mut_ptr() };
        // SAFETY: the structure points to `len` instructions, which outlive the call; the kernel copies them.
        unsafe { set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)? };
        let version = libc::tpacket_versions::TPACKET_V3 as c_int;
        // SAFETY: the option is an integer.
        unsafe { set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)? };
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: FRAME_BYTES as u32,
            tp_frame_nr: (blocks * (BLOCK_BYTES / FRAME_BYTES)) as u32,
            tp_retire_blk_tov: RETIRE.as_millis() as u32,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        // SAFETY: the option is this structure, with this version.
        unsafe { set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)? };
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, of the length of the ring.
        let memory = unsafe { libc::mmap(ptr::null_mut(), blocks * BLOCK_BYTES, access, kind, socket.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let ring = Ring { socket, memory, blocks, next: 0 };
        if ignore_outgoing {
            // SAFETY: the option is an integer. Kernels before 4.20 do not have it; the filter has the same effect.
            unsafe { set(&ring.socket, libc::SOL_PACKET, IGNORE_OUTGOING, &c_int::from(true)).ok() };
        }
        ring.bind(interface)?;
        Ok(ring)
    }

    fn bind(&self, interface: u32) -> io::Result<()> {
        let address = sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: interface as c_int,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of::<sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is valid for its length.
        check(unsafe { libc::bind(self.socket.as_raw_fd(), ptr::from_ref(&address).cast(), len) })
    }

    /// The number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The next block, if the kernel has handed it over.
    pub(super) fn block(&mut self) -> Option<Block<'_>> {
        let status = self.status(self.next).load(Ordering::Acquire);
        // Not `then_some`, which would always create the block: dropping it would return it to the kernel.
        (status & libc::TP_STATUS_USER != 0).then(|| Block { ring: self, status })
    }

    /// Number of blocks that wait to be read.
    pub(super) fn waiting(&self) -> usize {
        let blocks = (0..self.blocks).map(|after| (self.next + after) % self.blocks);
        blocks.take_while(|block| self.status(*block).load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0).count()
    }

    /// Waits until a block can be read, at most this long.
    ///
    /// # Errors
    /// When the interface is down or gone, which is reported once for each change.
    pub(super) fn wait(&self, at_most: Duration) -> io::Result<()> {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = c_int::try_from(at_most.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: one valid structure.
        match check(unsafe { libc::poll(&raw mut poll, 1, milliseconds) }) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ if poll.revents & libc::POLLERR != 0 => {
                let mut error: c_int = 0;
                // SAFETY: the option is an integer.
                unsafe { get(&self.socket, libc::SOL_SOCKET, libc::SO_ERROR, &mut error)? };
                if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
            }
            _ => Ok(()),
        }
    }

    /// The kernel's losses since the last call.
    pub(super) fn losses(&self) -> io::Result<Losses> {
        let mut stats = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        // SAFETY: the option is this structure, with this version.
        unsafe { get(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats)? };
        Ok(Losses { packets: stats.tp_drops.into(), full: stats.tp_freeze_q_cnt.into() })
    }

    /// The beginning of a block.
    fn start(&self, block: usize) -> NonNull<u8> {
        // SAFETY: the index is below the number of blocks, all of which are in the mapping.
        unsafe { self.memory.add(block * BLOCK_BYTES) }
    }

    /// The status word of a block, which the kernel writes too.
    fn status(&self, block: usize) -> &AtomicU32 {
        let at = offset_of!(tpacket_block_desc, hdr) + offset_of!(tpacket_hdr_v1, block_status);
        // SAFETY: in bounds, aligned (blocks begin at multiples of their length), and only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.start(block).add(at).cast().as_ptr()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `open`, and nothing borrows from it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.blocks * BLOCK_BYTES) };
    }
}

/// A block that the kernel has handed over. Dropping it returns it to the kernel.
#[derive(Debug)]
pub(super) struct Block<'a> {
    ring: &'a mut Ring,
    status: u32,
}

impl Block<'_> {
    /// True if the kernel has dropped packets. It sets this flag in every block until [`Ring::losses`] is called.
    pub(super) fn is_losing(&self) -> bool {
        self.status & libc::TP_STATUS_LOSING != 0
    }

    /// The kernel's losses since the last call.
    pub(super) fn losses(&self) -> io::Result<Losses> {
        self.ring.losses()
    }

    /// The packets in the block.
    pub(super) fn packets(&self) -> Packets<'_> {
        // SAFETY: the block is in the mapping, and the kernel does not write to it until it is given back.
        let bytes = unsafe { std::slice::from_raw_parts(self.ring.start(self.ring.next).as_ptr(), BLOCK_BYTES) };
        let header = offset_of!(tpacket_block_desc, hdr);
        let number = |at| number(bytes, header + at).unwrap_or(0);
        let next = number(offset_of!(tpacket_hdr_v1, offset_to_first_pkt)) as usize;
        Packets { bytes, next, left: number(offset_of!(tpacket_hdr_v1, num_pkts)) }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        let Ring { next, blocks, .. } = *self.ring;
        self.ring.status(next).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.ring.next = (next + 1) % blocks;
    }
}

/// The packets of a block, in the order of their capture.
#[derive(Debug)]
pub(super) struct Packets<'a> {
    bytes: &'a [u8],
    next: usize,
    left: u32,
}

/// A packet in the ring.
#[derive(Debug)]
pub(super) struct RingPacket<'a> {
    /// The packet from its IP header on.
    pub(super) bytes: &'a [u8],
    pub(super) original_len: usize,
    /// Capture time since the Unix epoch.
    pub(super) at: Duration,
    pub(super) is_outgoing: bool,
    pub(super) checksum: Checksum,
}

impl<'a> Iterator for Packets<'a> {
    type Item = RingPacket<'a>;

    fn next(&mut self) -> Option<RingPacket<'a>> {
        self.left = self.left.checked_sub(1)?;
        let frame = self.bytes.get(self.next..)?;
        let field = |at| number(frame, at);
        let len = field(offset_of!(tpacket3_hdr, tp_snaplen))? as usize;
        let start = usize::from(u16::from_ne_bytes(array(frame, offset_of!(tpacket3_hdr, tp_net))?));
        let is_outgoing = *frame.get(ADDRESS + offset_of!(sockaddr_ll, sll_pkttype))? == libc::PACKET_OUTGOING;
        let status = field(offset_of!(tpacket3_hdr, tp_status))?;
        let packet = RingPacket {
            bytes: frame.get(start..)?.get(..len)?,
            original_len: field(offset_of!(tpacket3_hdr, tp_len))? as usize,
            at: Duration::new(field(offset_of!(tpacket3_hdr, tp_sec))?.into(), 0)
                + Duration::from_nanos(field(offset_of!(tpacket3_hdr, tp_nsec))?.into()),
            is_outgoing,
            checksum: match is_outgoing {
                true => Checksum::Sent,
                false if status & (TP_STATUS_CSUMNOTREADY | TP_STATUS_CSUM_VALID) != 0 => Checksum::Verified,
                false => Checksum::Received,
            },
        };
        self.next += field(offset_of!(tpacket3_hdr, tp_next_offset))? as usize;
        Some(packet)
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

/// # Safety
/// The option must have the type `T`.
unsafe fn set<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is valid for its length; the caller chose its type.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(value).cast(), len) })
}

/// # Safety
/// The option must have the type `T`, and all its values must be valid.
unsafe fn get<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let value = ptr::from_mut(value).cast();
    // SAFETY: the value is valid for its length; the caller chose its type.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut len) })
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
