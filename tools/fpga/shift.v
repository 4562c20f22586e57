// Shifters of 32 bits, for the multipliers of an FPGA: a shift left is a product with a power of 2.
//
// Two products shift the halves of the word by up to 15 places. One more level shifts by 16.
// A shift right reverses the order of the bits before and after, which costs nothing; one that
// copies the sign inverts a negative number before and after.
// Shifts by a constant, of a constant, or by other than 5 bits are left to Yosys.

(* techmap_celltype = "$shl $shr $sshr" *)
module product_shift (A, B, Y);
  parameter A_SIGNED = 0;
  parameter B_SIGNED = 0;
  parameter A_WIDTH = 1;
  parameter B_WIDTH = 1;
  parameter Y_WIDTH = 1;
  parameter _TECHMAP_CELLTYPE_ = "";
  parameter [A_WIDTH-1:0] _TECHMAP_CONSTMSK_A_ = 0;
  parameter [B_WIDTH-1:0] _TECHMAP_CONSTMSK_B_ = 0;

  (* force_downto *) input [A_WIDTH-1:0] A;
  (* force_downto *) input [B_WIDTH-1:0] B;
  (* force_downto *) output [Y_WIDTH-1:0] Y;

  localparam LEFT = _TECHMAP_CELLTYPE_ == "$shl";
  localparam SIGNED = _TECHMAP_CELLTYPE_ == "$sshr" && A_SIGNED;

  wire _TECHMAP_FAIL_ = A_WIDTH < 24 || A_WIDTH > 32 || Y_WIDTH < 24 || Y_WIDTH > 64
    || B_WIDTH != 5 || B_SIGNED || (A_SIGNED && (!SIGNED || A_WIDTH != 32))
    || (!LEFT && Y_WIDTH > 32) || &_TECHMAP_CONSTMSK_A_ || |_TECHMAP_CONSTMSK_B_;

  wire flip = SIGNED ? A[A_WIDTH-1] : 1'b0;
  wire [31:0] word, entered;
  wire [15:0] power;
  wire [31:0] low, high;
  wire [47:0] near;
  wire [63:0] far;

  assign word = A ^ {A_WIDTH{flip}};
  \$mul #(.A_SIGNED(0), .B_SIGNED(0), .A_WIDTH(16), .B_WIDTH(16), .Y_WIDTH(32))
    low_product (.A(entered[15:0]), .B(power), .Y(low));
  \$mul #(.A_SIGNED(0), .B_SIGNED(0), .A_WIDTH(16), .B_WIDTH(16), .Y_WIDTH(32))
    high_product (.A(entered[31:16]), .B(power), .Y(high));
  assign near = {high, 16'h0} | low;
  assign far = B[4] ? {near, 16'h0} : near;

  genvar i;
  generate
    for (i = 0; i < 16; i = i + 1) assign power[i] = B[3:0] == i;
    for (i = 0; i < 32; i = i + 1) assign entered[i] = LEFT ? word[i] : word[31-i];
    for (i = 0; i < Y_WIDTH; i = i + 1)
      if (LEFT) assign Y[i] = far[i];
      else assign Y[i] = far[31-i] ^ flip;
  endgenerate
endmodule
