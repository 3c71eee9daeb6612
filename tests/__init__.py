"""The proof. Each folder is a layer; a test marked with promise ids appears on the guarantees page under its layer."""
