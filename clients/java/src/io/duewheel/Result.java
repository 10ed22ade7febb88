package io.duewheel;

/** What came of one item of a batch: a value, or an error. */
public record Result<T>(T value, DuewheelException error) {
    /** The value. @throws DuewheelException if there is none */
    public T get() {
        if (error != null) throw error;
        return value;
    }
}
