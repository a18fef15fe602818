"""Programs for developers of stillbox; none of them is part of the package."""
