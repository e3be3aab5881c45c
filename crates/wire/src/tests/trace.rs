//! A visitor that writes down what it is told.
