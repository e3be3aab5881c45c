//! Limits on the cost that clients can cause in the observers: one memory budget per process, with a fair share for
//! each connection and each client address, and a work budget per connection.
//!
//! Memory is charged by what is really held. A connection may hold at most as much as is still free (the dynamic
//! threshold of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). The same limit holds for all
//! connections of one address together, except small ones. One client can therefore hold at most half of the budget,
//! and the most expensive clients are refused first.
//!
//! Decoding is paid for with received bytes: each byte received on a connection earns a number of decoded bytes.

mod memory;
mod work;

pub use memory::{Account, Budget, Exhausted, Share};
