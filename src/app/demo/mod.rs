//! `tokometer demo`: a simulated server, the relay in front of it and a load, in one process, with a live table.

mod board;
mod screen;
