//! Limits on what clients can make the observers cost: one memory budget for the process, with a fair share for each
//! connection and each client address, and a work budget for each connection.
//!
//! Memory is charged by what is really held. A connection may hold at most as much as is still free (the dynamic threshold
//! of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998), and so may all connections of one address
//! together, but for small ones: one client can take half of the budget at most, and the costliest are refused first.
//!
//! Decoding is paid for with received bytes: each byte that a connection carries earns a number of decoded bytes.

mod memory;
mod work;

pub use memory::{Account, Budget, Exhausted, Share};
