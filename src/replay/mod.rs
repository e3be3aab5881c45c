//! Reads recordings of real servers and runs them through observe and measure.
