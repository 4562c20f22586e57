"""The cross-lane unit: moves words between lanes and sublanes, and reduces over lanes."""
