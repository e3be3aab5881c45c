//! Who used how many tokens, what they cost, and how much of a budget they were: records in, sums out.
//!
//! Off until it is set. A tenant is what a client says it is: nothing here checks it, and its label is a hash unless the settings
//! say otherwise. An exchange whose counts are not known adds no cost, and is counted as one without a price.

mod book;
mod identity;
mod price;
mod settings;
mod sums;

pub use book::{Costs, Ledger, Rules, Spent, Sums, TOKENS, TenantUsage, UnpricedAnswers};
pub use identity::Error;
pub use price::{Basis, Unpriced, cost};
pub use settings::{Budget, Limit, Price, Prices, Settings, TenantForm, Tenants};
pub use sums::Usage;
