//! Whole turns over a scripted model.
