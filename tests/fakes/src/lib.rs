//! Strict doubles of the services that the products talk to. They depend on neither product, check the invariants of
//! every request they receive, and make a test fail by themselves when one is broken.

pub mod model;
pub mod vercel;
