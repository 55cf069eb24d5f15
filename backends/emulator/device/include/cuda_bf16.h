// Declared by device.hpp.
