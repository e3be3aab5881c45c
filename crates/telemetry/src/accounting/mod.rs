//! Accounting: tokens, cost and budget use by tenant and model, summed up from request records.
//!
//! Disabled unless configured. Tenant names are client-supplied and not verified; their label is a hash unless
//! configured otherwise. A request with unknown token counts adds no cost and is counted as unpriced.

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
